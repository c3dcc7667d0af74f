# Benchmarks. "make bench" runs the pipeline on the embedded model if it was not run yet and prints decode speeds of all modes.
EXTRA_DIST += bench/cpu.sh bench/peer_llama.py bench/json.sh bench/gpu.sh bench/demo.sh bench/decode.sh bench/predictor.sh

# Then the table of this machine: what each weight type reaches beside what memory gives (small models; larger ones: BENCH_TABLE_ARGS='--bytes 1.1 --repeat 3').
BENCH_TABLE_ARGS = --bytes 0.3 --steps 24 --repeat 1
bench: all bench/pi-synth
	@test -f demo-out/demo.predictor.gguf || DEMO_OUT=$(abs_builddir)/demo-out $(SHELL) $(srcdir)/bench/demo.sh $(abs_builddir)
	@PATH=$(abs_builddir):$$PATH $(SHELL) $(srcdir)/bench/decode.sh demo-out/demo.gguf 1 2
	@PATH=$(abs_builddir):$(abs_builddir)/bench:$$PATH RESULTS=bench $(SHELL) $(srcdir)/bench/cpu.sh cpu $(BENCH_TABLE_ARGS)

# make bench-predictor: the predictors of the embedded model on text they were not trained on.
bench-predictor: all bench/mask_stats
	@test -f demo-out/demo.predictor.gguf || DEMO_OUT=$(abs_builddir)/demo-out $(SHELL) $(srcdir)/bench/demo.sh $(abs_builddir)
	@PATH=$(abs_builddir):$$PATH MASK_STATS=bench/mask_stats $(SHELL) $(srcdir)/bench/predictor.sh demo-out/demo.gguf \
	  $(srcdir)/datasets/demo-text/heldout.txt $(BENCH_TEXT)

# make bench-cpu: bandwidth of the CPU kernels and speed of the BLAS on this machine.
bench-cpu: bench/bench_cpu
	@bench/bench_cpu $(BENCH_CPU_ARGS)

# make bench-cold: the CPU's share of a split layer, scattered rows beside a sequential read.
bench-cold: bench/bench_cold
	@bench/bench_cold $(BENCH_COLD_ARGS)

# make bench-modes BENCH_MODES_ARGS=M.gguf: decode steps of one model in all modes, part by part, beside a sequential read of the same file.
bench-modes: bench/bench_modes
	@bench/bench_modes $(BENCH_MODES_ARGS)

# make bench-sparse: scattered rows beside a sequential read of the same memory, in ordinary and in huge pages.
bench-sparse: bench/bench_sparse
	@bench/bench_sparse $(BENCH_SPARSE_ARGS)

.PHONY: bench bench-predictor bench-cpu bench-cold bench-kernels bench-modes bench-sparse

EXTRA_PROGRAMS = bench/bench_cpu bench/bench_cold bench/bench_modes bench/bench_sparse bench/mask_stats
CLEANFILES += $(EXTRA_PROGRAMS)
bench_bench_cpu_SOURCES = bench/bench_cpu.c
bench_bench_cpu_LDADD   = $(PI_RUNTIME_LIBS)
bench_bench_cold_SOURCES = bench/bench_cold.c
bench_bench_cold_LDADD   = $(PI_RUNTIME_LIBS)
bench_bench_modes_SOURCES = bench/bench_modes.c
bench_bench_modes_LDADD   = $(PI_RUNTIME_LIBS)
bench_bench_sparse_SOURCES = bench/bench_sparse.c
bench_bench_sparse_LDADD   = $(PI_RUNTIME_LIBS)
bench_mask_stats_SOURCES = bench/mask_stats.c
bench_mask_stats_LDADD   = $(PI_COMMON_LIBS)

# make bench-kernels: device kernels at the shape of a 7B model; BENCH_KERNELS_ARGS=--sweep tries other geometries.
if HAVE_CUDA
EXTRA_PROGRAMS += bench/bench_kernels
bench-kernels: bench/bench_kernels
	@bench/bench_kernels $(BENCH_KERNELS_ARGS)
endif
bench_bench_kernels_SOURCES = bench/bench_kernels.c bench/bench_kernels.h bench/bench_kernels_ffn.c bench/bench_kernels_mat.c
bench_bench_kernels_LDADD   = $(PI_RUNTIME_LIBS)

# pi-synth: a generator of synthetic models; tests use it too. Contraction is off so that all machines write the same bytes.
check_PROGRAMS += bench/pi-synth
bench_pi_synth_SOURCES = bench/pi-synth.c bench/pi_synth.h bench/pi_synth_file.c bench/pi_synth_law.c bench/pi_synth_make.c \
                         bench/pi_synth_rows.c
bench_pi_synth_CFLAGS  = $(AM_CFLAGS) -ffp-contract=off
bench_pi_synth_LDADD   = $(PI_RUNTIME_LIBS)

# make bench-prompt BENCH_PROMPT_ARGS='M.gguf 0.18 512': prompt chunks with cold neurons streamed in every way there is. Needs a GPU; the emulated one shows
# that it runs.
if HAVE_CUDA
EXTRA_PROGRAMS += bench/bench_prompt
bench-prompt: bench/bench_prompt
	@bench/bench_prompt $(BENCH_PROMPT_ARGS)
endif
bench_bench_prompt_SOURCES = bench/bench_prompt.c
bench_bench_prompt_LDADD   = $(PI_RUNTIME_LIBS)
if HAVE_CXX
EXTRA_PROGRAMS += bench/bench_prompt_emu
bench_bench_prompt_emu_SOURCES = bench/bench_prompt.c
bench_bench_prompt_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif
.PHONY: bench-prompt
