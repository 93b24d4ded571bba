# SPDX-License-Identifier: Apache-2.0
# Writes the source of the kernels, with our own headers in the place of their includes, as a C++ string (kernel_source.h)
# and as one file to compile. Run as a script:
#   cmake -DKERNELS=folder -DINCLUDE=folder -DCPP=out.cc -DCUDA=out.cu -P kernel_source.cmake
# Headers are in the order in which each finds what it needs; includes of the standard library stay, where no run-time
# compiler sees them.
set(shared integers dtype wide casts elements mxfp8 quantize_numbers quantize_blocks quantize_groups quantize_rules digest replay/ring_words
  replay/ring_steps)
set(own parameters device locate copy_kernels turn_kernels elements_of_four cast_kernels compare_kernel patches/change_kernel patches/ring_kernel reduce_kernel
  quantize_rows quantize_kernel patches/product_kernel digests/digest_kernel forms_values forms_tiles forms_groups forms_kernel move_kernels)
set(files)
foreach(name ${shared})
  list(APPEND files ${INCLUDE}/tensorferry/${name}.h)
endforeach()
foreach(name ${own})
  list(APPEND files ${KERNELS}/${name}.h)
endforeach()

set(source "")
foreach(file ${files})
  file(READ ${file} text)
  string(REGEX REPLACE "#pragma once\n" "" text "${text}")
  string(REGEX REPLACE "#include (\"[^\"]*\"|<tensorferry/[^>]*>)\n" "" text "${text}")
  string(APPEND source "${text}")
endforeach()

file(WRITE ${CUDA} "${source}")
# Compilers limit the length of one literal; neighbours are joined.
set(literals "")
string(LENGTH "${source}" length)
set(at 0)
while(at LESS length)
  string(SUBSTRING "${source}" ${at} 8000 piece)
  string(APPEND literals "R\"tensorferry(${piece})tensorferry\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${CPP} "// Made by kernel_source.cmake.
#include \"kernel_source.h\"

namespace tensorferry::gpu {

namespace {
constexpr char text[] =
${literals};
}  // namespace

const char* const kernelSource = text;
const size_t kernelSourceLength = sizeof text - 1;

}  // namespace tensorferry::gpu
")
