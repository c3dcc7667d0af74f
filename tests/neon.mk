# make check-neon: the CPU kernels and their tests, compiled for aarch64 and run by QEMU: a minute or two. No libraries of that processor are needed but
# those of the C compiler. Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static. Where the compiler or QEMU is missing it says so and passes.
# On a machine of that kind make check runs the same tests as everywhere.
PI_NEON_CC  = aarch64-linux-gnu-gcc
PI_NEON_RUN = qemu-aarch64-static

pi_neon_kernels = $(filter runtime/cpu/%.c,$(libpi_runtime_a_SOURCES))
pi_neon_sources = $(pi_neon_kernels) \
	runtime/pi_blas.c runtime/pi_blas_axpys.c runtime/pi_blas_products.c \
	common/pi_affinity.c common/pi_alloc.c common/pi_cgroup.c common/pi_cores.c common/pi_err.c common/pi_pool.c common/pi_type.c common/pi_utf8.c
pi_neon_tests   = tests/t_cpu tests/t_cpu_rows tests/t_cpu_q8 tests/t_blas
pi_neon_objects = $(pi_neon_sources:%.c=%.neon.o)
pi_neon_flags   = -std=gnu11 $(PI_WARN_CFLAGS) -ffp-contract=off -O2 -g -I$(srcdir)/tests/neon $(DEFS) $(DEFAULT_INCLUDES) -I$(srcdir) -I.

EXTRA_DIST += tests/neon/cblas.h
CLEANFILES += common/*.neon.o runtime/*.neon.o runtime/cpu/*.neon.o tests/*.neon.o tests/*.neon tests/*.neon.tap

%.neon.o: %.c
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(pi_v_neon)$(PI_NEON_CC) $(pi_neon_flags) -MMD -MP -MT $@ -MF $(@D)/$(DEPDIR)/$(*F).neon.Cud -c -o $@ $<
pi_v_neon   = $(pi_v_neon_@AM_V@)
pi_v_neon_  = $(pi_v_neon_@AM_DEFAULT_V@)
pi_v_neon_0 = @echo "  CC(neon)" $@;
-include $(wildcard */$(DEPDIR)/*.neon.Cud */*/$(DEPDIR)/*.neon.Cud)

tests/%.neon: tests/%.neon.o $(pi_neon_objects)
	$(pi_v_neon)$(PI_NEON_CC) -static -o $@ $< $(pi_neon_objects) -lpthread -lm

# A program's last line is its plan: anything but as many lines of "ok" is a failure.
tests/%.neon.tap: tests/%.neon
	@$(PI_NEON_RUN) $< >$@.tmp || { grep '^not ok' $@.tmp; echo "FAIL: $<" >&2; exit 1; }
	@awk '/^ok/ { n++ } /^# no neon/ { print "$<: " $$0 } { plan = $$0 } END { print "$<: " n " ok"; exit plan != "1.." n }' $@.tmp
	@mv $@.tmp $@

# The kernels that a processor without products of four bytes gets.
pi_neon_old = $(PI_NEON_RUN) -cpu cortex-a72 tests/t_cpu.neon

check-neon:
	@if ! command -v $(PI_NEON_CC) >/dev/null; then echo "SKIP: check-neon: no $(PI_NEON_CC)"; \
	elif ! command -v $(PI_NEON_RUN) >/dev/null; then echo "SKIP: check-neon: no $(PI_NEON_RUN)"; \
	else $(MAKE) $(pi_neon_tests:%=%.neon.tap) check-neon-old; fi
check-neon-old: tests/t_cpu.neon
	@$(pi_neon_old) | grep -q '^# no neondot here' || { echo "FAIL: $(pi_neon_old): neondot on a processor without it" >&2; exit 1; }
.PHONY: check-neon check-neon-old
