# The tests of CPU kernels once more, with the AVX-512 and VNNI kernels compiled against a scalar emulation of the intrinsics they use
# (tests/emu_x86/emu_x86.h): what a machine with AVX2 alone can say of them. Elsewhere they print that a table is not there.
# Not in sanitizer builds, where compiling and running them takes minutes: the same sources run there as AVX2's.
if !ENABLE_SANITIZERS
check_LIBRARIES += tests/libpi_cpu_emu.a
tests_libpi_cpu_emu_a_SOURCES = \
	tests/emu_x86/emu_x86.h \
	runtime/cpu/pi_cpu.c \
	runtime/cpu/pi_cpu_avx512.c runtime/cpu/pi_cpu_q8_avx512.c \
	runtime/cpu/pi_cpu_q8_avx512vnni.c runtime/cpu/pi_cpu_q8_avxvnni.c
tests_libpi_cpu_emu_a_CPPFLAGS = $(AM_CPPFLAGS) -DPI_CPU_EMU
tests_libpi_cpu_emu_a_CFLAGS   = $(AM_CFLAGS)

# Taken from here though only libpi_runtime.a asks for it, later.
pi_cpu_emu_ldflags = $(AM_LDFLAGS) -Wl,-u,pi_avxvnni_gemm_q8

pi_unit_tests += tests/t_cpu_emu tests/t_cpu_rows_emu tests/t_cpu_q8_emu tests/t_blas_emu
tests_t_cpu_emu_SOURCES = tests/t_cpu.c tests/cpu_draw.h tests/tap.h
tests_t_cpu_emu_LDFLAGS = $(pi_cpu_emu_ldflags)
tests_t_cpu_emu_LDADD = tests/libpi_cpu_emu.a $(PI_RUNTIME_LIBS)
tests_t_cpu_rows_emu_SOURCES = tests/t_cpu_rows.c tests/cpu_draw.h tests/tap.h
tests_t_cpu_rows_emu_LDFLAGS = $(pi_cpu_emu_ldflags)
tests_t_cpu_rows_emu_LDADD = tests/libpi_cpu_emu.a $(PI_RUNTIME_LIBS)
tests_t_cpu_q8_emu_SOURCES = tests/t_cpu_q8.c tests/tap.h
tests_t_cpu_q8_emu_LDFLAGS = $(pi_cpu_emu_ldflags)
tests_t_cpu_q8_emu_LDADD = tests/libpi_cpu_emu.a $(PI_RUNTIME_LIBS)
tests_t_blas_emu_SOURCES = tests/t_blas.c tests/tap.h
tests_t_blas_emu_LDFLAGS = $(pi_cpu_emu_ldflags)
tests_t_blas_emu_LDADD = tests/libpi_cpu_emu.a $(PI_RUNTIME_LIBS)
endif
