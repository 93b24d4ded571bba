// SPDX-License-Identifier: Apache-2.0
/*
 * Runs all tests, or those whose name holds the first argument; as `--child NAME`, the other side of one.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "check.h"

namespace {

std::vector<std::pair<std::string, void (*)()>>& tests() {
  static std::vector<std::pair<std::string, void (*)()>> list;
  return list;
}
std::map<std::string, void (*)()>& children() {
  static std::map<std::string, void (*)()> list;
  return list;
}
std::string current = "?";

}  // namespace

Registered::Registered(const char* name, void (*run)()) { tests().emplace_back(name, run); }
RegisteredChild::RegisteredChild(const char* name, void (*run)()) { children()[name] = run; }

void failed(const char* file, int line, const char* text, long long actual, long long expected) {
  std::fprintf(stderr, "%s:%d: %s failed: %s (%lld, expected %lld)\n%s\n", file, line, current.c_str(), text, actual,
               expected, report().c_str());
  _exit(1);
}

void begin(const std::string& settings) {
  tensorferry_sim_reset();
  EQUAL(tensorferry_sim_configure(settings.c_str()), 0);
  OK(cudaSetDevice(0));
}

std::string report() {
  std::string text(tensorferry_sim_report(nullptr, 0) + 4096, 0);
  text.resize(tensorferry_sim_report(text.data(), text.size()));
  return text;
}

int violations(const std::string& name) {
  const std::string text = report();
  const std::string wanted = "{\"name\":\"" + name + "\"";
  int count = 0;
  for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) count++;
  return count;
}

long long number(const std::string& key) {
  const std::string text = report();
  const size_t at = text.find("\"" + key + "\":");
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + key.size() + 3);
}

void clean(const char* file, int line) {
  checkEqual(file, line, "violations", number("violationCount"), 0);
  for (const char* kind : {"memory", "virtualMemory", "hostMemory", "hostRegistrations", "streams", "events",
                           "importedMemory", "importedEvents", "modules", "programs", "communicators"})
    checkEqual(file, line, kind, number(kind), 0);
}

void writeAll(int file, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, at, bytes);
    if (written <= 0) return;
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

bool readAll(int file, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(file, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

Process::Process(const char* child, const std::string& settings) {
  int down[2];
  int up[2];
  CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
  process_ = fork();
  CHECK(process_ >= 0);
  if (process_ == 0) {
    dup2(down[0], 0);
    dup2(up[1], 1);
    setenv("TENSORFERRY_GPU_SIMULATOR", settings.c_str(), 1);
    execl("/proc/self/exe", "test", "--child", child, static_cast<char*>(nullptr));
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  in_ = up[0];
  out_ = down[1];
}
Process::~Process() {
  kill();
  close(in_);
  close(out_);
}
void Process::send(const void* data, size_t bytes) { writeAll(out_, data, bytes); }
void Process::receive(void* data, size_t bytes) { CHECK(readAll(in_, data, bytes)); }
void Process::kill() {
  if (process_ == 0) return;
  ::kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = 0;
}
void Process::end() {
  int status = 0;
  waitpid(process_, &status, 0);
  process_ = 0;
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void tell(const void* data, size_t bytes) { writeAll(1, data, bytes); }
bool hear(void* data, size_t bytes) { return readAll(0, data, bytes); }

int main(int count, char** values) {
  signal(SIGPIPE, SIG_IGN);
  if (count == 3 && std::string(values[1]) == "--child") {
    current = values[2];
    children().at(values[2])();
    return 0;
  }
  const std::string wanted = count > 1 ? values[1] : "";
  int ran = 0;
  for (const auto& test : tests()) {
    if (test.first.find(wanted) == std::string::npos) continue;
    current = test.first;
    test.second();
    std::printf("ok %s\n", test.first.c_str());
    std::fflush(stdout);
    ran++;
  }
  std::printf("%d tests\n", ran);
  return ran > 0 ? 0 : 1;
}
