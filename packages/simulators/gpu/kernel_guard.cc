// SPDX-License-Identifier: Apache-2.0
/*
 * A signal handler that leaves the kernel of its thread. Faults elsewhere go to whoever handled them before.
 *
 * Kernels own nothing, so nothing is lost by leaving them.
 */
#include "kernel_guard.h"

#include <setjmp.h>
#include <signal.h>

#include <mutex>

namespace tensorferry::gpu::simulator {
namespace {

struct Landing {
  sigjmp_buf place;
  volatile bool inside;
  volatile uintptr_t address;
};
thread_local Landing landing;

struct sigaction segmentationBefore;
struct sigaction busBefore;

void onFault(int signal, siginfo_t* about, void* context) {
  if (landing.inside) {
    landing.address = reinterpret_cast<uintptr_t>(about->si_addr);
    siglongjmp(landing.place, 1);
  }
  const struct sigaction& before = signal == SIGBUS ? busBefore : segmentationBefore;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, about, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    // Comes again at once, now with the default effect.
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
  }
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &segmentationBefore);
  sigaction(SIGBUS, &action, &busBefore);
}

}  // namespace

bool runGuarded(const SimulatedKernel& kernel, const void* parameter, unsigned grid, unsigned block,
                uintptr_t* address) {
  static std::once_flag installed;
  std::call_once(installed, install);
  landing.inside = false;
  if (sigsetjmp(landing.place, 1) != 0) {
    landing.inside = false;
    *address = landing.address;
    return false;
  }
  landing.inside = true;
  kernel.run(parameter, grid, block);
  landing.inside = false;
  return true;
}

}  // namespace tensorferry::gpu::simulator
