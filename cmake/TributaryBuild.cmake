# Flags, packages and helper functions that every folder's CMakeLists.txt uses.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Paths are taken relative to the tree, so that another clone finds what this one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CMAKE_SOURCE_DIR}/cmake/compile.sh ${CCACHE_PROGRAM})
  # ccache can only keep what is compiled with a precompiled header if GCC names it in its output.
  add_compile_options(-fpch-preprocess)
endif()

# Speed matters in compression/ and aggregation/, which ask for -O3 themselves; elsewhere a build that is quick does.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")

# No contraction and no fast-math anywhere: grid values must not depend on the compiler's taste.
add_compile_options(-Wall -Wextra -Werror -ffp-contract=off -fno-fast-math)
if(TRIBUTARY_SANITIZER)
  add_compile_options(-fsanitize=${TRIBUTARY_SANITIZER} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TRIBUTARY_SANITIZER})
  if(TRIBUTARY_SANITIZER MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  if(TRIBUTARY_SANITIZER MATCHES "thread")
    # GCC's tsan does not model fences; Abseil and the standard library use them safely.
    add_compile_options(-Wno-tsan)
    add_link_options(-Wl,--version-script=${CMAKE_SOURCE_DIR}/tests/sanitizers/tsan.map)
  endif()
endif()

find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(isal REQUIRED IMPORTED_TARGET libisal)

# tributary_library(NAME SOURCES... DEPS...): the one target of a folder, `tributary_<NAME>`.
function(tributary_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(tributary_${name} STATIC ${ARG_SOURCES})
  target_include_directories(tributary_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(tributary_${name} PUBLIC ${ARG_DEPS})
endfunction()

# tributary_test(NAME SOURCES... DEPS... [LABELS ...] [FAST ...] [TIMEOUT s]): a GoogleTest binary, one ctest entry.
# Labels: `unit` (also run under the sanitizers), `e2e` (real processes), `full` (only `./run test --full`).
function(tributary_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;FAST" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(TRIBUTARY_SANITIZER)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")  # tsan takes up to fifteen times as long, most tests a tenth of theirs
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TRIBUTARY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  # With a short history tsan loses stacks, and with them what a suppression is told by.
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/tsan.supp:halt_on_error=1:history_size=7"
    "UBSAN_OPTIONS=print_stacktrace=1")
  # What `./run test` builds and runs of the sanitizers: asan_fast and tsan_fast, labels and targets.
  foreach(fast ${ARG_FAST})
    if(NOT TARGET ${fast})
      add_custom_target(${fast})
    endif()
    add_dependencies(${fast} ${name})
    set_property(TEST ${name} APPEND PROPERTY LABELS ${fast})
  endforeach()
endfunction()

# tributary_hot(NAME): this folder's kernels and loops are what a round's speed hangs on.
function(tributary_hot name)
  if(NOT TRIBUTARY_SANITIZER)
    target_compile_options(tributary_${name} PRIVATE -O3)
  endif()
endfunction()
