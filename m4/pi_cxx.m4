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
  CXXFLAGS=$pi_save_CXXFLAGS
  AC_LANG_POP([C++])
  AS_IF([test $pi_have_cxx = no],
    [AC_MSG_WARN([no C++17 compiler: the tests of the GPU code on the CPU are left out (Debian: apt-get install g++)])])
  # The emulated objects come first; what libpi_runtime.a has of the same names is not used.
  AC_SUBST([PI_EMU_LDFLAGS], [-Wl,-z,muldefs])
  AM_CONDITIONAL([HAVE_CXX], [test $pi_have_cxx = yes])
])
