# Benchmarks. "make bench" runs the pipeline on the embedded model if it was not run yet and prints decode speeds of all modes.
EXTRA_DIST += bench/json.sh bench/demo.sh bench/decode.sh

bench: all
	@test -f demo-out/demo.predictor.gguf || DEMO_OUT=$(abs_builddir)/demo-out $(SHELL) $(srcdir)/bench/demo.sh $(abs_builddir)
	@PATH=$(abs_builddir):$$PATH $(SHELL) $(srcdir)/bench/decode.sh demo-out/demo.gguf 1 2
.PHONY: bench


# make bench-cpu: bandwidth of the CPU kernels and speed of the BLAS on this machine.
EXTRA_PROGRAMS = bench/bench_cpu
bench_bench_cpu_SOURCES = bench/bench_cpu.c
bench_bench_cpu_LDADD   = $(PI_RUNTIME_LIBS)
CLEANFILES += bench/bench_cpu
bench-cpu: bench/bench_cpu
	@bench/bench_cpu $(BENCH_CPU_ARGS)
.PHONY: bench-cpu
