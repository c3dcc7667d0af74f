# The CUDA emulator (tests/emu/cuda_emu.h) and the tests that run GPU code on the CPU, in every build with a C++17
# compiler, with or without CUDA. Nothing of it is installed.
#
# tests/emu/pi_emu.o is the emulator with all PI_CU_SOURCES and PI_GPU_C_SOURCES of runtime/local.mk compiled against
# it; PI_RUNTIME_EMU_LIBS is what a program links in place of PI_RUNTIME_LIBS: the linker then leaves alone what
# libpi_runtime.a has of these (pi_gpu_none.c, or the CUDA build's).
#
# To add a test of GPU code, build it twice, against the real library and against the emulated one:
#   a C program that uses our headers only:
#       pi_unit_tests += tests/t_x
#       tests_t_x_SOURCES = tests/t_x.c tests/tap.h
#       tests_t_x_LDADD   = $(PI_RUNTIME_LIBS)
#       if HAVE_CXX
#       pi_unit_tests += tests/t_x_emu
#       tests_t_x_emu_SOURCES = tests/t_x.c tests/tap.h
#       tests_t_x_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
#       endif
#   a .cu file with a main(), which includes runtime/cuda/pi_cuda_port.cuh (put it in EXTRA_DIST outside the ifs):
#       if HAVE_CUDA
#       pi_unit_tests += tests/t_x
#       tests_t_x_SOURCES = tests/t_x.cu
#       tests_t_x_LDADD   = $(PI_RUNTIME_LIBS)
#       endif
#       if HAVE_CXX
#       pi_unit_tests += tests/t_x_emu
#       tests_t_x_emu_SOURCES =
#       tests_t_x_emu_LDADD   = tests/t_x.emu.o $(PI_RUNTIME_EMU_LIBS)
#       endif
# The real one must skip where there is no GPU (pi_gpu_count() == 0), the emulated one never. tests/emu/emu_ctl.h has
# what a test can ask the emulated device; cuda_emu.h lists the environment: memory size, failures, orders. Tests that
# set it from a script: PI_EMU_BLOCKS=random:7 PI_EMU_THREADS=reverse tests/t_x_emu.
PI_EMU_CPP = \
	tests/emu/emu_config.cpp \
	tests/emu/emu_cublas.cpp \
	tests/emu/emu_exec.cpp \
	tests/emu/emu_fiber.cpp \
	tests/emu/emu_graph.cpp \
	tests/emu/emu_memory.cpp \
	tests/emu/emu_pdl.cpp \
	tests/emu/emu_stream.cpp
EXTRA_DIST += $(PI_EMU_CPP) \
	tests/emu/cuda_emu.h \
	tests/emu/emu_ctl.h \
	tests/emu/emu_cublas.h \
	tests/emu/emu_device.h \
	tests/emu/emu_fiber.h \
	tests/emu/emu_host.h \
	tests/emu/emu_int.h \
	tests/emu/emu_stream.h \
	tests/emu/emu_types.h \
	tests/emu_rig.h \
	tests/t_emu.cu \
	tests/t_emu_host.cu \
	tests/cli/emu_orders_lib.sh \
	tests/cli/emu-orders.sh \
	tests/cli/emu-orders-engine.sh

CLEANFILES += tests/*.emu.o tests/emu/*.o runtime/*.emu.o runtime/cuda/*.emu.o

if HAVE_CXX
PI_EMU_OBJECTS = $(PI_EMU_CPP:.cpp=.emu.o) $(PI_CU_SOURCES:.cu=.emu.o) $(PI_GPU_C_SOURCES:.c=.emu.o)
PI_RUNTIME_EMU_LIBS = tests/emu/pi_emu.o libpi_runtime.a $(PI_COMMON_LIBS) $(BLAS_LIBS) -lstdc++ -ldl -lpthread

pi_emu_flags = $(DEFS) -DPI_CUDA_EMU $(DEFAULT_INCLUDES) $(INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) -ffp-contract=off
# Kernels read packed halves through pointers of other types, which device compilers allow.
pi_emu_cxxflags = $(pi_emu_flags) -fno-strict-aliasing -std=gnu++17 -Wall -Wno-unknown-pragmas $(PI_WERROR) $(PI_SAN_FLAGS) \
                  $(PI_EMU_CXXFLAGS) $(CXXFLAGS)
pi_emu_deps = -MMD -MP -MT $@ -MF $(@D)/$(DEPDIR)/$(*F).emu.Cud
pi_v_cxx   = $(pi_v_cxx_@AM_V@)
pi_v_cxx_  = $(pi_v_cxx_@AM_DEFAULT_V@)
pi_v_cxx_0 = @echo "  CXX(emu)" $@;

%.emu.o: %.cu
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(pi_v_cxx)$(CXX) -x c++ $(pi_emu_cxxflags) $(pi_emu_deps) -c -o $@ $<

%.emu.o: %.cpp
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(pi_v_cxx)$(CXX) $(pi_emu_cxxflags) $(pi_emu_deps) -c -o $@ $<

%.emu.o: %.c
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(pi_v_cxx)$(CC) $(pi_emu_flags) $(AM_CFLAGS) $(CFLAGS) $(pi_emu_deps) -c -o $@ $<

tests/emu/pi_emu.o: $(PI_EMU_OBJECTS)
	$(pi_v_cxx)$(CC) -r -nostdlib -o $@ $(PI_EMU_OBJECTS)

-include $(wildcard */$(DEPDIR)/*.emu.Cud */*/$(DEPDIR)/*.emu.Cud)

pi_unit_tests += tests/t_emu tests/t_emu_host
tests_t_emu_SOURCES =
tests_t_emu_LDADD   = tests/t_emu.emu.o $(PI_RUNTIME_EMU_LIBS)
tests_t_emu_host_SOURCES =
tests_t_emu_host_LDADD   = tests/t_emu_host.emu.o $(PI_RUNTIME_EMU_LIBS)

pi_unit_tests += tests/t_gpu_emu
tests_t_gpu_emu_SOURCES = tests/t_gpu.c tests/tap.h
tests_t_gpu_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)

pi_long_tests += tests/cli/emu-orders-engine.sh
pi_cli_tests += tests/cli/emu-orders.sh

# pi-run on the emulated GPU, for the command-line tests.
check_PROGRAMS += tests/emu/pi-run-emu
tests_emu_pi_run_emu_SOURCES = $(pi_run_SOURCES)
nodist_tests_emu_pi_run_emu_SOURCES = $(nodist_pi_run_SOURCES)
tests_emu_pi_run_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS) $(MICROHTTPD_LIBS) $(LIBEDIT_LIBS)
endif
