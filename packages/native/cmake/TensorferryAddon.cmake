# SPDX-License-Identifier: Apache-2.0
# Builds an addon of this workspace: plain CMake, headers from npm packages, no download. Owns the compiler settings.
#   tensorferry_addon(NAME SOURCE...)
# Options: -DSANITIZE=address|thread

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_FLAGS_RELEASE "-O3")
set(SANITIZE "" CACHE STRING "address or thread: build with this sanitizer")
if(NOT DEFINED TENSORFERRY_NPM_DIR)
  set(TENSORFERRY_NPM_DIR ${CMAKE_SOURCE_DIR})
endif()
set(TENSORFERRY_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../include")
find_package(Threads REQUIRED)

# The folder that an npm package states for its headers, resolved from the package being built or from TENSORFERRY_NPM_DIR.
function(tensorferry_npm_include package out)
  execute_process(COMMAND node -p "require('path').resolve(require('${package}').include_dir)" WORKING_DIRECTORY ${TENSORFERRY_NPM_DIR}
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${out} ${folder} PARENT_SCOPE)
endfunction()

# Settings that every target of an addon shares.
function(tensorferry_settings target)
  tensorferry_npm_include(node-addon-api addon_api)
  tensorferry_npm_include(node-api-headers node_api)
  target_include_directories(${target} PRIVATE ${TENSORFERRY_INCLUDE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${addon_api} ${node_api})
  target_compile_definitions(${target} PRIVATE NAPI_VERSION=9 NAPI_DISABLE_CPP_EXCEPTIONS)
  # No contraction: casts and reductions must give the same bits on every machine.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-parameter -ffp-contract=off)
  if(SANITIZE)
    target_compile_options(${target} PRIVATE -O1 -g1 -fno-omit-frame-pointer -fsanitize=${SANITIZE})
    target_link_options(${target} PRIVATE -fsanitize=${SANITIZE})
  endif()
endfunction()

function(tensorferry_addon name)
  add_library(${name} MODULE ${ARGN})
  tensorferry_settings(${name})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".node"
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/Release)
  target_compile_definitions(${name} PRIVATE NODE_GYP_MODULE_NAME=${name})
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
