# PI_CHECK_CXX: whether $CXX compiles C++17. Only tests need it: the CUDA emulator. Sets HAVE_CXX (automake).
AC_DEFUN([PI_CHECK_CXX], [
  AC_LANG_PUSH([C++])
  pi_save_CXXFLAGS=$CXXFLAGS
  CXXFLAGS="$CXXFLAGS -std=gnu++17"
  AC_MSG_CHECKING([whether $CXX compiles C++17])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <memory>
#include <tuple>]], [[auto t = std::make_shared<std::tuple<int>>(1); if constexpr (sizeof(t) > 1) return std::get<0>(*t);]])],
    [pi_have_cxx=yes], [pi_have_cxx=no])
  AC_MSG_RESULT([$pi_have_cxx])
  # Half and fused arithmetic in hardware where this machine has it: the same results, three times as fast.
  AC_ARG_VAR([PI_EMU_CXXFLAGS], [flags for the tests' CUDA emulator and GPU code compiled against it])
  AS_IF([test -z "${PI_EMU_CXXFLAGS+set}"], [
    CXXFLAGS="$CXXFLAGS -mavx2 -mfma -mf16c"
    AC_MSG_CHECKING([whether this machine runs AVX2, FMA and F16C])
    AC_RUN_IFELSE([AC_LANG_PROGRAM([], [[return !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"));]])],
      [pi_have_fma=yes], [pi_have_fma=no], [pi_have_fma=no])
    AC_MSG_RESULT([$pi_have_fma])
    AS_IF([test $pi_have_fma = yes], [PI_EMU_CXXFLAGS="-mavx2 -mfma -mf16c"])
  ])
  CXXFLAGS=$pi_save_CXXFLAGS
  AC_LANG_POP([C++])
  AS_IF([test $pi_have_cxx = no],
    [AC_MSG_WARN([no C++17 compiler: the tests of the GPU code on the CPU are left out (Debian: apt-get install g++)])])
  AM_CONDITIONAL([HAVE_CXX], [test $pi_have_cxx = yes])
])
