# PI_NEED_PC(VAR, MODULE, DEBIAN-PACKAGE): a library with a .pc file, or its package in pi_missing.
AC_DEFUN([PI_NEED_PC], [
  PKG_CHECK_MODULES([$1], [$2], [], [AC_MSG_RESULT([no])
    AS_VAR_APPEND([pi_missing], [" $3"])])
])

# PI_NEED_LIB(VAR, HEADER, LIBRARY, FUNCTION, DEBIAN-PACKAGE): a library without one.
AC_DEFUN([PI_NEED_LIB], [
  pi_found=no
  AC_CHECK_HEADER([$2], [AC_CHECK_LIB([$3], [$4], [pi_found=yes
    AC_SUBST([$1_LIBS], [-l$3])])])
  AS_IF([test $pi_found = no], [AS_VAR_APPEND([pi_missing], [" $5"])])
])

# PI_NEED_BLAS: CBLAS with LAPACK's ssyevd in the same library; OpenBLAS first. BLAS_LIBS, BLAS_CFLAGS;
# HAVE_OPENBLAS when openblas_set_num_threads() is there.
AC_DEFUN([PI_NEED_BLAS], [
  AC_ARG_VAR([BLAS_LIBS], [linker flags of a CBLAS with LAPACK])
  AC_ARG_VAR([BLAS_CFLAGS], [compiler flags for cblas.h])
  AS_IF([test -z "$BLAS_LIBS"],
    [PKG_CHECK_MODULES([BLAS], [openblas], [], [BLAS_LIBS="-lopenblas"])])
  pi_save_LIBS=$LIBS
  pi_save_CPPFLAGS=$CPPFLAGS
  LIBS="$BLAS_LIBS $LIBS"
  CPPFLAGS="$BLAS_CFLAGS $CPPFLAGS"
  pi_found=no
  AC_CHECK_HEADER([cblas.h], [AC_CHECK_FUNC([cblas_sgemm], [AC_CHECK_FUNC([ssyevd_], [pi_found=yes])])])
  AC_CHECK_FUNC([openblas_set_num_threads],
    [AC_DEFINE([HAVE_OPENBLAS], [1], [Define to 1 if the CBLAS is OpenBLAS.])])
  LIBS=$pi_save_LIBS
  CPPFLAGS=$pi_save_CPPFLAGS
  AS_IF([test $pi_found = no], [AS_VAR_APPEND([pi_missing], [" libopenblas-dev"])])
])
