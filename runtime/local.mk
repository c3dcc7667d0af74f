# libpi_runtime.a: model, kernels, executors, sampler; pi-run.
noinst_LIBRARIES += libpi_runtime.a
libpi_runtime_a_SOURCES = \
	runtime/cpu/pi_cpu.c runtime/cpu/pi_cpu.h \
	runtime/cpu/pi_cpu_int.h \
	runtime/cpu/pi_cpu_ops.c \
	runtime/cpu/pi_cpu_quant.c runtime/cpu/pi_cpu_quant_k.c \
	runtime/cpu/pi_cpu_simd.h runtime/cpu/pi_cpu_simd_plain.h runtime/cpu/pi_cpu_simd_read.h runtime/cpu/pi_cpu_simd_rows.h \
	runtime/cpu/pi_cpu_simd_block.h runtime/cpu/pi_cpu_simd_many.h runtime/cpu/pi_cpu_simd_wide.h \
	runtime/cpu/pi_cpu_simd_q8.h \
	runtime/cpu/pi_cpu_simd_x86.h \
	runtime/cpu/pi_cpu_q8_x86.h runtime/cpu/pi_cpu_q8_x86_eight.h runtime/cpu/pi_cpu_q8_x86_far.h runtime/cpu/pi_cpu_q8_x86_many.h runtime/cpu/pi_cpu_q8_x86_panel.h runtime/cpu/pi_cpu_q8_x86_256.h runtime/cpu/pi_cpu_q8_x86_512.h \
	runtime/cpu/pi_cpu_scalar.c \
	runtime/cpu/pi_cpu_scalar_q8.c \
	runtime/cpu/pi_cpu_avx2.c runtime/cpu/pi_cpu_q8_avx2.c runtime/cpu/pi_cpu_q8_avxvnni.c \
	runtime/cpu/pi_cpu_avx512.c runtime/cpu/pi_cpu_q8_avx512.c runtime/cpu/pi_cpu_q8_avx512vnni.c \
	runtime/cpu/pi_cpu_neon.c runtime/cpu/pi_cpu_q8_neon.c runtime/cpu/pi_cpu_q8_neondot.c \
	runtime/cpu/pi_cpu_simd_neon.h runtime/cpu/pi_cpu_q8_neon.h \
	runtime/cpu/pi_gemm.c runtime/cpu/pi_gemm.h runtime/cpu/pi_gemm_simd.h runtime/cpu/pi_gemm_simd_q8.h \
	runtime/pi_blas.c runtime/pi_blas_axpys.c runtime/pi_blas_products.c runtime/pi_blas.h runtime/pi_blas_int.h \
	runtime/pi_batcher.c runtime/pi_batcher.h \
	runtime/chat/pi_talk.c runtime/chat/pi_talk.h \
	runtime/pi_chat.c runtime/pi_chat.h \
	runtime/pi_cold.c runtime/pi_cold_tile.c runtime/pi_cold_own.c runtime/pi_cold.h runtime/pi_cold_int.h \
	runtime/pi_device.c runtime/pi_device.h \
	runtime/pi_engine.c runtime/pi_engine.h \
	runtime/pi_engine_graph.c runtime/pi_engine_plan.c runtime/pi_engine_int.h \
	runtime/pi_exec_cpu.c runtime/pi_exec_cpu.h \
	runtime/pi_kv.c runtime/pi_kv.h \
	runtime/pi_ops.c runtime/pi_ops_ffn.c runtime/pi_ops_prompt.c runtime/pi_ops_prompt_attn.c runtime/pi_resident.c runtime/pi_resident_copy.c runtime/pi_resident.h runtime/pi_ops_q8.c runtime/pi_ops.h \
	runtime/pi_eval.c runtime/pi_eval.h \
	runtime/pi_floor.c runtime/pi_floor.h \
	runtime/pi_gpu.h \
	runtime/pi_gpu_form.c runtime/pi_gpu_form.h \
	runtime/pi_gpu_context.h \
	runtime/pi_model.c runtime/pi_model.h \
	runtime/pi_nvml.c runtime/pi_nvml.h \
	runtime/pi_patience.h \
	runtime/pi_place_fit.c runtime/pi_place_fit.h \
	runtime/pi_place_gpu.c runtime/pi_place_gpu.h \
	runtime/pi_sampler.c runtime/pi_sampler.h \
	runtime/pi_stop.c runtime/pi_stop.h \
	runtime/pi_text.c runtime/pi_text.h \
	runtime/server/pi_api.c runtime/server/pi_api.h \
	runtime/server/pi_call.c runtime/server/pi_call_int.h \
	runtime/server/pi_calls.c runtime/server/pi_calls.h \
	runtime/server/pi_clerk.c runtime/server/pi_clerk.h \
	runtime/server/pi_origin.c runtime/server/pi_origin.h \
	runtime/server/pi_watch.c runtime/server/pi_watch.h \
	runtime/pi_verify.c runtime/pi_verify.h \
	runtime/pi_width.c runtime/pi_width.h
libpi_runtime_a_CFLAGS = $(AM_CFLAGS)

# The GPU's files: CUDA, and the C that only makes sense beside it. Built into libpi_runtime.a where there is nvcc,
# and for the emulator's tests by the C++ compiler (tests/emu.mk). Add a file here, nothing else.
PI_CU_SOURCES = \
	runtime/cuda/pi_gpu.cu \
	runtime/cuda/pi_gpu_blas.cu \
	runtime/cuda/pi_gpu_measure.cu \
	runtime/cuda/pi_gpu_stream.cu \
	runtime/cuda/pi_gpu_wait.cu \
	runtime/cuda/pi_k_attn.cu \
	runtime/cuda/pi_k_down.cu \
	runtime/cuda/pi_k_ffn.cu \
	runtime/cuda/pi_k_handover.cu \
	runtime/cuda/pi_k_mat.cu \
	runtime/cuda/pi_k_misc.cu \
	runtime/cuda/pi_k_prompt.cu \
	runtime/cuda/pi_k_prompt_attn.cu \
	runtime/cuda/pi_k_set.cu \
	runtime/cuda/pi_k_topk.cu
PI_GPU_C_SOURCES = \
	runtime/pi_dev_model.c \
	runtime/pi_dev_pack.c \
	runtime/pi_engine_gpu.c \
	runtime/pi_exec_gpu.c \
	runtime/pi_exec_gpu_buffers.c \
	runtime/pi_exec_gpu_capture.c \
	runtime/pi_exec_gpu_host.c \
	runtime/pi_exec_gpu_step.c \
	runtime/pi_exec_gpu_trace.c \
	runtime/pi_exec_gpu_watch.c \
	runtime/pi_gpu_context.c \
	runtime/pi_gpu_prompt.c \
	runtime/pi_gpu_prompt_cold.c \
	runtime/pi_gpu_prompt_far.c \
	runtime/pi_gpu_prompt_layer.c \
	runtime/pi_gpu_prompt_stream.c \
	runtime/pi_gpu_prompt_wait.c
libpi_runtime_a_SOURCES += \
	runtime/cuda/pi_cuda_port.cuh \
	runtime/cuda/pi_gpu_wait.h \
	runtime/cuda/pi_k_dot.cuh \
	runtime/cuda/pi_k_ffn.cuh \
	runtime/cuda/pi_k_mat.cuh \
	runtime/cuda/pi_k_mat.h \
	runtime/cuda/pi_k_prompt.h \
	runtime/cuda/pi_k_q8.cuh \
	runtime/cuda/pi_kernels.h \
	runtime/pi_dev_model.h \
	runtime/pi_exec_gpu.h runtime/pi_exec_gpu_int.h \
	runtime/pi_gpu_prompt.h runtime/pi_gpu_prompt_int.h

# Prompt chunks: memory that the device reads where it is mapped.
PI_CU_SOURCES    += runtime/cuda/pi_gpu_register.cu
PI_GPU_C_SOURCES += runtime/pi_gpu_prompt_direct.c

# Training of predictors.
PI_CU_SOURCES    += runtime/cuda/pi_k_train.cu
PI_GPU_C_SOURCES += runtime/pi_gpu_fit.c
libpi_runtime_a_SOURCES += runtime/cuda/pi_k_train.h runtime/pi_gpu_fit.h

if HAVE_CUDA
libpi_runtime_a_SOURCES += $(PI_CU_SOURCES) $(PI_GPU_C_SOURCES)
PI_CU_DEPS = $(foreach f,$(PI_CU_SOURCES),$(dir $(f))$(DEPDIR)/$(basename $(notdir $(f))).Cud)
else
libpi_runtime_a_SOURCES += runtime/pi_gpu_fit_none.c runtime/pi_gpu_none.c
endif

bin_PROGRAMS  += pi-run
pi_run_SOURCES = runtime/pi-run.c \
	runtime/pi_bench.c runtime/pi_bench_report.c runtime/pi_bench.h \
	runtime/pi_budgets.c runtime/pi_budgets.h runtime/pi_child.c runtime/pi_child.h \
	runtime/pi_where.c runtime/pi_where.h \
	runtime/pi_generate.c runtime/pi_generate.h \
	runtime/pi_load.c runtime/pi_load.h runtime/pi_load_place.c runtime/pi_load_int.h \
	runtime/pi_measure.c runtime/pi_measure.h \
	runtime/pi_prompt.c runtime/pi_prompt.h \
	runtime/pi_report.c runtime/pi_report.h \
	runtime/pi_run_options.c runtime/pi_run_options.h runtime/pi_run_rows.c runtime/pi_run_rows.h
pi_run_SOURCES += runtime/server/pi_server.h runtime/server/pi_server_int.h runtime/server/pi_web.h runtime/server/pi_status.h
if HAVE_MICROHTTPD
pi_run_SOURCES += runtime/server/pi_server.c runtime/server/pi_http.c runtime/server/pi_web.c runtime/server/pi_status.c
nodist_pi_run_SOURCES = runtime/server/pi_web_data.c
else
pi_run_SOURCES += runtime/server/pi_server_none.c
endif
pi_run_SOURCES += \
	runtime/chat/pi_answer.c runtime/chat/pi_answer.h \
	runtime/chat/pi_converse.c runtime/chat/pi_converse.h \
	runtime/chat/pi_line.c runtime/chat/pi_line.h runtime/chat/pi_line_int.h
if HAVE_LIBEDIT
pi_run_SOURCES += runtime/chat/pi_line_edit.c
else
pi_run_SOURCES += runtime/chat/pi_line_edit_none.c
endif
EXTRA_DIST += runtime/chat/pi_line_edit.c runtime/chat/pi_line_edit_none.c
pi_run_LDADD    = $(PI_RUNTIME_LIBS) $(MICROHTTPD_LIBS) $(LIBEDIT_LIBS)
EXTRA_DIST += runtime/server/pi_server.c runtime/server/pi_http.c runtime/server/pi_web.c runtime/server/pi_status.c runtime/server/pi_server_none.c

# The page, as arrays of bytes in the program.
EXTRA_DIST += runtime/server/page.html runtime/server/page.css runtime/server/page.js build-aux/embed.sh
CLEANFILES += runtime/server/pi_web_data.c
runtime/server/pi_web_data.c: $(srcdir)/runtime/server/page.html $(srcdir)/runtime/server/page.css \
		$(srcdir)/runtime/server/page.js $(srcdir)/build-aux/embed.sh
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(SHELL) $(srcdir)/build-aux/embed.sh pi_web runtime/server/pi_web.h $(srcdir)/runtime/server/page.html \
	    $(srcdir)/runtime/server/page.css $(srcdir)/runtime/server/page.js > $@-t && mv -f $@-t $@
