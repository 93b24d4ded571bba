// SPDX-License-Identifier: Apache-2.0
/*
 * The runtime compiler: checks options and what it can of the source, and makes an image that names the kernels in it.
 */
#include <cctype>
#include <cstring>
#include <set>
#include <sstream>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

bool startsWith(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

constexpr int machines[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

/** Switches and values that change nothing here. */
bool isHarmless(const std::string& option) {
  static const std::set<std::string> switches = {"-default-device",
                                                 "--default-device",
                                                 "--device-as-default-execution-space",
                                                 "-lineinfo",
                                                 "--generate-line-info",
                                                 "-G",
                                                 "--device-debug",
                                                 "-w",
                                                 "--disable-warnings",
                                                 "--restrict",
                                                 "-restrict",
                                                 "--extra-device-vectorization",
                                                 "--use_fast_math",
                                                 "-use_fast_math",
                                                 "--device-int128",
                                                 "--minimal",
                                                 "--no-source-include"};
  static const char* const prefixes[] = {"-D",
                                         "--define-macro=",
                                         "-U",
                                         "--undefine-macro=",
                                         "--fmad=",
                                         "-fmad=",
                                         "--ftz=",
                                         "-ftz=",
                                         "--prec-div=",
                                         "-prec-div=",
                                         "--prec-sqrt=",
                                         "-prec-sqrt=",
                                         "--maxrregcount=",
                                         "-maxrregcount=",
                                         "-dopt=",
                                         "--dopt=",
                                         "--diag-suppress=",
                                         "-I",
                                         "--include-path=",
                                         "--ptxas-options=",
                                         "-Xptxas="};
  if (switches.count(option) > 0) return true;
  for (const char* prefix : prefixes)
    if (startsWith(option, prefix) && option.size() > std::strlen(prefix)) return true;
  return false;
}

bool isStandard(const std::string& option) {
  static const std::set<std::string> standards = {"c++03", "c++11", "c++14", "c++17", "c++20"};
  const size_t equals = option.find('=');
  return equals != std::string::npos && (startsWith(option, "--std=") || startsWith(option, "-std=")) &&
         standards.count(option.substr(equals + 1)) > 0;
}

/** Reads the machine of `--gpu-architecture=sm_90`; false when there is none of that name. */
bool readArchitecture(const Settings& settings, const std::string& option, bool& real, int& architecture) {
  const size_t equals = option.find('=');
  if (equals == std::string::npos || !(startsWith(option, "--gpu-architecture=") || startsWith(option, "-arch=")))
    return false;
  const std::string name = option.substr(equals + 1);
  real = startsWith(name, "sm_");
  if (!real && !startsWith(name, "compute_")) return false;
  std::string digits = name.substr(name.find('_') + 1);
  if (!digits.empty() && (digits.back() == 'a' || digits.back() == 'f')) digits.pop_back();
  for (const int machine : machines)
    if (machine <= settings.compiler && digits == std::to_string(machine)) {
      architecture = machine;
      return true;
    }
  return false;
}

/** Comments and texts become blanks, so that what is left can be counted. */
std::string withoutComments(const std::string& source) {
  std::string plain = source;
  enum class In { Code, Line, Block, Text, Character } in = In::Code;
  for (size_t at = 0; at < plain.size(); at++) {
    const char one = plain[at];
    const char next = at + 1 < plain.size() ? plain[at + 1] : 0;
    if (in == In::Code) {
      if (one == '/' && next == '/') in = In::Line;
      else if (one == '/' && next == '*') in = In::Block;
      else if (one == '"') in = In::Text;
      // Between digits it separates them.
      else if (one == '\'' && (at == 0 || !std::isalnum(static_cast<unsigned char>(plain[at - 1])))) in = In::Character;
      if (in == In::Line || in == In::Block) plain[at] = ' ';
      continue;
    }
    if (in == In::Line && one == '\n') {
      in = In::Code;
      continue;
    }
    if (in == In::Block && one == '*' && next == '/') {
      plain[at] = plain[at + 1] = ' ';
      at++;
      in = In::Code;
      continue;
    }
    if (in == In::Text || in == In::Character) {
      const char end = in == In::Text ? '"' : '\'';
      if (one == '\\') {
        if (at + 1 < plain.size()) plain[at + 1] = ' ';
        plain[at++] = ' ';
      } else if (one == end) {
        in = In::Code;
      } else if (in == In::Character || (one != '\n' && std::strchr("{}()", one) != nullptr)) {
        plain[at] = ' ';
      }
      continue;
    }
    if (one != '\n') plain[at] = ' ';
  }
  return plain;
}

/** What is wrong with a text, or nothing. Includes outside of conditions must be among the headers. */
std::string faultOf(const std::string& name, const std::string& source, const Program& program) {
  const std::string plain = withoutComments(source);
  if (plain.find_first_not_of(" \t\r\n") == std::string::npos) return name + ": error: the source is empty";
  std::istringstream lines(plain);
  std::string line;
  int depth = 0;
  int number = 0;
  while (std::getline(lines, line)) {
    number++;
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    const std::string directive = word == std::string::npos ? "" : line.substr(word);
    const std::string place = name + "(" + std::to_string(number) + "): error: ";
    if (startsWith(directive, "if")) depth++;
    if (startsWith(directive, "endif") && --depth < 0) return place + "#endif without #if";
    if (depth > 0) continue;
    if (startsWith(directive, "error")) return place + directive;
    if (startsWith(directive, "include")) {
      const size_t quote = directive.find_first_of("\"<");
      const size_t end = quote == std::string::npos ? quote : directive.find_first_of("\">", quote + 1);
      if (end == std::string::npos) return place + "bad include";
      const std::string header = directive.substr(quote + 1, end - quote - 1);
      bool given = false;
      for (const auto& one : program.headers) given |= one.first == header;
      if (!given) return place + "cannot open source file \"" + header + "\"";
    }
  }
  if (depth != 0) return name + ": error: #if without #endif";
  for (const char* pair : {"{}", "()"}) {
    int open = 0;
    for (const char one : plain) open += one == pair[0] ? 1 : one == pair[1] ? -1 : 0;
    // Branches of conditions may each open a brace; only a text without conditions must balance.
    if (open != 0 && plain.find("#if") == std::string::npos) return name + ": error: unbalanced " + pair;
  }
  return "";
}

int compile(const Settings& settings, Program& program, const std::vector<std::string>& options) {
  bool real = false;
  int architecture = 75;
  for (const auto& option : options) {
    if (isHarmless(option) || isStandard(option) || readArchitecture(settings, option, real, architecture)) continue;
    program.log = "nvrtc: error: invalid value or unrecognized option '" + option + "'";
    return compiler::invalidOption;
  }
  program.log = faultOf(program.name, program.source, program);
  uint64_t hash = hashText(program.source);
  std::string all = program.source;
  for (const auto& header : program.headers) {
    if (program.log.empty()) program.log = faultOf(header.first, header.second, program);
    hash = hashText(header.first + header.second, hash);
    all += "\n" + header.second;
  }
  for (const auto& option : options) hash = hashText(option, hash);
  if (!program.log.empty()) return compiler::compilation;
  std::vector<std::string> names;
  size_t count = 0;
  const SimulatedKernel* kernels = tensorferry_simulated_kernels(&count);
  for (size_t index = 0; index < count; index++)
    if (all.find(kernels[index].name) != std::string::npos) names.emplace_back(kernels[index].name);
  program.ptx = makeImage(false, architecture, hash, names);
  program.cubin = real ? makeImage(true, architecture, hash, names) : "";
  return compiler::success;
}

template <typename Body>
int nvrtcCall(const char* function, void* handle, Body body) noexcept {
  return guarded(function, compiler::internalError, [&](Call& call) -> int {
    const auto program = call.world.modules.programs.find(handle);
    if (program == nullptr) {
      call.world.violation(call.world.modules.programs.wasReleased(handle) ? "use-after-destroy" : "bad-handle",
                           std::string(function) + " with a program that does not exist (any more).");
      return compiler::invalidProgram;
    }
    return body(call, *program);
  });
}

int sizeOf(const char* function, void* handle, size_t* size, std::string Program::* text, bool needed) {
  return nvrtcCall(function, handle, [&](Call&, Program& program) -> int {
    if (size == nullptr) return compiler::invalidInput;
    if (needed && program.ptx.empty()) return compiler::invalidProgram;
    // All but machine code count a zero at the end; here that has one too, because it is text.
    *size = (program.*text).empty() && needed ? 0 : (program.*text).size() + 1;
    return compiler::success;
  });
}

int textOf(const char* function, void* handle, char* out, std::string Program::* text, bool needed) {
  return nvrtcCall(function, handle, [&](Call&, Program& program) -> int {
    if (out == nullptr) return compiler::invalidInput;
    if (needed && (program.*text).empty()) return compiler::invalidProgram;
    std::memcpy(out, (program.*text).c_str(), (program.*text).size() + 1);
    return compiler::success;
  });
}

}  // namespace

TENSORFERRY_SIM_API int nvrtcVersion(int* major, int* minor) {
  return guarded("nvrtcVersion", compiler::internalError, [&](Call&) -> int {
    if (major == nullptr || minor == nullptr) return compiler::invalidInput;
    *major = 13;
    *minor = 0;
    return compiler::success;
  });
}

TENSORFERRY_SIM_API int nvrtcGetNumSupportedArchs(int* count) {
  return guarded("nvrtcGetNumSupportedArchs", compiler::internalError, [&](Call& call) -> int {
    if (count == nullptr) return compiler::invalidInput;
    *count = 0;
    for (const int machine : machines) *count += machine <= call.world.settings.compiler;
    return compiler::success;
  });
}

TENSORFERRY_SIM_API int nvrtcGetSupportedArchs(int* out) {
  return guarded("nvrtcGetSupportedArchs", compiler::internalError, [&](Call& call) -> int {
    if (out == nullptr) return compiler::invalidInput;
    for (const int machine : machines)
      if (machine <= call.world.settings.compiler) *out++ = machine;
    return compiler::success;
  });
}

TENSORFERRY_SIM_API int nvrtcCreateProgram(void** handle, const char* source, const char* name, int headers,
                                           const char* const* texts, const char* const* names) {
  return guarded("nvrtcCreateProgram", compiler::internalError, [&](Call& call) -> int {
    if (handle == nullptr || source == nullptr || headers < 0 ||
        (headers > 0 && (texts == nullptr || names == nullptr)))
      return compiler::invalidInput;
    auto program = std::make_shared<Program>();
    program->name = name == nullptr ? "default_program" : name;
    program->source = source;
    for (int index = 0; index < headers; index++) {
      if (texts[index] == nullptr || names[index] == nullptr) return compiler::invalidInput;
      program->headers.emplace_back(names[index], texts[index]);
    }
    *handle = call.world.modules.programs.issue(std::move(program));
    return compiler::success;
  });
}

TENSORFERRY_SIM_API int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  return nvrtcCall("nvrtcCompileProgram", handle, [&](Call& call, Program& program) -> int {
    std::vector<std::string> given;
    for (int index = 0; index < count; index++) {
      if (options == nullptr || options[index] == nullptr) return compiler::invalidInput;
      given.emplace_back(options[index]);
    }
    return compile(call.world.settings, program, given);
  });
}

TENSORFERRY_SIM_API int nvrtcGetPTXSize(void* handle, size_t* size) {
  return sizeOf("nvrtcGetPTXSize", handle, size, &Program::ptx, true);
}
TENSORFERRY_SIM_API int nvrtcGetPTX(void* handle, char* out) {
  return textOf("nvrtcGetPTX", handle, out, &Program::ptx, true);
}
TENSORFERRY_SIM_API int nvrtcGetCUBINSize(void* handle, size_t* size) {
  return sizeOf("nvrtcGetCUBINSize", handle, size, &Program::cubin, true);
}
TENSORFERRY_SIM_API int nvrtcGetCUBIN(void* handle, char* out) {
  return textOf("nvrtcGetCUBIN", handle, out, &Program::cubin, true);
}
TENSORFERRY_SIM_API int nvrtcGetProgramLogSize(void* handle, size_t* size) {
  return sizeOf("nvrtcGetProgramLogSize", handle, size, &Program::log, false);
}
TENSORFERRY_SIM_API int nvrtcGetProgramLog(void* handle, char* out) {
  return textOf("nvrtcGetProgramLog", handle, out, &Program::log, false);
}

TENSORFERRY_SIM_API int nvrtcDestroyProgram(void** handle) {
  if (handle == nullptr) return compiler::invalidInput;
  return nvrtcCall("nvrtcDestroyProgram", *handle, [&](Call& call, Program&) -> int {
    call.world.modules.programs.release(*handle);
    *handle = nullptr;
    return compiler::success;
  });
}

TENSORFERRY_SIM_API const char* nvrtcGetErrorString(int error) {
  static const char* const names[] = {"NVRTC_SUCCESS",
                                      "NVRTC_ERROR_OUT_OF_MEMORY",
                                      "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                      "NVRTC_ERROR_INVALID_INPUT",
                                      "NVRTC_ERROR_INVALID_PROGRAM",
                                      "NVRTC_ERROR_INVALID_OPTION",
                                      "NVRTC_ERROR_COMPILATION",
                                      "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
                                      "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
                                      "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
                                      "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
                                      "NVRTC_ERROR_INTERNAL_ERROR"};
  return error >= 0 && error < 12 ? names[error] : "NVRTC_ERROR unknown";
}

}  // namespace tensorferry::gpu::simulator
