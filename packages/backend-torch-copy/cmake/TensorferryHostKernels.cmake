# SPDX-License-Identifier: Apache-2.0
# The host's kernels as a source for other programs: tests compare what devices compute with them.
set(TENSORFERRY_HOST_KERNELS "${CMAKE_CURRENT_LIST_DIR}/../native/kernels.cc")
