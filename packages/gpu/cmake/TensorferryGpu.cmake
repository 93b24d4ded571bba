# SPDX-License-Identifier: Apache-2.0
# What other packages build from this one. Include it after TensorferryAddon.
#   tensorferry_gpu_device(TARGET)   the public headers, and the code that opens the vendors' libraries
#   tensorferry_gpu_kernels()        the target tensorferry_gpu_host_kernels: the kernels as plain C++, for simulated drivers
set(TENSORFERRY_GPU_NATIVE_DIR "${CMAKE_CURRENT_LIST_DIR}/../native")

function(tensorferry_gpu_device target)
  target_sources(${target} PRIVATE ${TENSORFERRY_GPU_NATIVE_DIR}/gpu_libraries.cc)
  target_include_directories(${target} PRIVATE ${TENSORFERRY_GPU_NATIVE_DIR}/include)
endfunction()

function(tensorferry_gpu_kernels)
  if(NOT TARGET tensorferry_gpu_host_kernels)
    add_subdirectory(${TENSORFERRY_GPU_NATIVE_DIR}/kernels ${CMAKE_BINARY_DIR}/gpu-kernels EXCLUDE_FROM_ALL)
  endif()
endfunction()
