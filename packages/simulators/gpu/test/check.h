// SPDX-License-Identifier: Apache-2.0
/*
 * What the tests share: checks that say where they failed, a list of tests, the report, and a second process.
 */
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda_api.h"

#define CHECK(condition) ((condition) ? (void)0 : failed(__FILE__, __LINE__, #condition, 0, 0))
#define EQUAL(actual, expected) checkEqual(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
#define OK(call) checkEqual(__FILE__, __LINE__, #call, (call), 0)
#define TEST(name)                                        \
  static void name();                                     \
  static const Registered registered_##name(#name, name); \
  static void name()
/** What a second process runs: its standard input and output lead to the first. */
#define CHILD(name)                                                 \
  static void name();                                               \
  static const RegisteredChild registeredChild_##name(#name, name); \
  static void name()

[[noreturn]] void failed(const char* file, int line, const char* text, long long actual, long long expected);
inline void checkEqual(const char* file, int line, const char* text, long long actual, long long expected) {
  if (actual != expected) failed(file, line, text, actual, expected);
}

struct Registered {
  Registered(const char* name, void (*run)());
};
struct RegisteredChild {
  RegisteredChild(const char* name, void (*run)());
};

/** Everything fresh, with these settings. */
void begin(const std::string& settings);
std::string report();
/** How often the report names the violation. */
int violations(const std::string& name);
/** No violation at all and nothing left alive. */
void clean(const char* file, int line);
#define CLEAN() clean(__FILE__, __LINE__)
long long number(const std::string& key);

/** Another process of this program that runs a CHILD. */
class Process {
 public:
  Process(const char* child, const std::string& settings);
  ~Process();
  void send(const void* data, size_t bytes);
  void receive(void* data, size_t bytes);
  template <typename T>
  void send(const T& value) {
    send(&value, sizeof value);
  }
  template <typename T>
  T receive() {
    T value;
    receive(&value, sizeof value);
    return value;
  }
  void kill();
  /** Waits for its end, which must be a good one. */
  void end();

 private:
  int process_ = 0;
  int in_ = -1;
  int out_ = -1;
};

/** The child's ends. */
void tell(const void* data, size_t bytes);
bool hear(void* data, size_t bytes);
template <typename T>
void tell(const T& value) {
  tell(&value, sizeof value);
}
template <typename T>
T hear() {
  T value;
  CHECK(hear(&value, sizeof value));
  return value;
}

inline void* newStream(unsigned flags = 1) {
  void* stream = nullptr;
  OK(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}
inline void* newEvent(unsigned flags = 2) {
  void* event = nullptr;
  OK(cudaEventCreateWithFlags(&event, flags));
  return event;
}
template <typename T = char>
T* newMemory(size_t count) {
  void* memory = nullptr;
  OK(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}
template <typename T = char>
T* newHost(size_t count) {
  void* memory = nullptr;
  OK(cudaHostAlloc(&memory, count * sizeof(T), 0));
  return static_cast<T*>(memory);
}
void writeAll(int file, const void* data, size_t bytes);
bool readAll(int file, void* data, size_t bytes);
