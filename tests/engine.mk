# Tests of engine: schedules, and the engine on tiny random models.
pi_unit_tests += tests/t_schedule
tests_t_schedule_SOURCES = tests/t_schedule.c tests/tap.h
tests_t_schedule_LDADD   = $(PI_RUNTIME_LIBS)

engine_rig = tests/engine_rig.h tests/tiny_model.c tests/tiny_forward.c tests/tiny_model.h tests/tap.h

pi_unit_tests += tests/t_engine
tests_t_engine_SOURCES = tests/t_engine.c $(engine_rig)
tests_t_engine_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_engine_sparse
tests_t_engine_sparse_SOURCES = tests/t_engine_sparse.c $(engine_rig)
tests_t_engine_sparse_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_width
tests_t_width_SOURCES = tests/t_width.c tests/tap.h
tests_t_width_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_batcher
tests_t_batcher_SOURCES = tests/t_batcher.c $(engine_rig)
tests_t_batcher_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_engine_errors
tests_t_engine_errors_SOURCES = tests/t_engine_errors.c $(engine_rig)
tests_t_engine_errors_LDADD   = $(PI_RUNTIME_LIBS)

EXTRA_DIST += tests/t_engine_gpu.c tests/t_gpu_stop.c
if HAVE_CUDA
pi_unit_tests += tests/t_engine_gpu
tests_t_engine_gpu_SOURCES = tests/t_engine_gpu.c $(engine_rig)
tests_t_engine_gpu_LDADD   = $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_engine_gpu_q8
tests_t_engine_gpu_q8_SOURCES = tests/t_engine_gpu_q8.c $(engine_rig)
tests_t_engine_gpu_q8_LDADD   = $(PI_RUNTIME_LIBS)
endif
if HAVE_CXX
pi_unit_tests += tests/t_engine_gpu_emu
tests_t_engine_gpu_emu_SOURCES = tests/t_engine_gpu.c $(engine_rig)
tests_t_engine_gpu_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
pi_unit_tests += tests/t_engine_gpu_q8_emu
tests_t_engine_gpu_q8_emu_SOURCES = tests/t_engine_gpu_q8.c $(engine_rig)
tests_t_engine_gpu_q8_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)

pi_unit_tests += tests/t_gpu_stop
tests_t_gpu_stop_SOURCES = tests/t_gpu_stop.c $(engine_rig)
tests_t_gpu_stop_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif

pi_unit_tests += tests/t_engine_q8
tests_t_engine_q8_SOURCES = tests/t_engine_q8.c $(engine_rig)
tests_t_engine_q8_LDADD   = $(PI_RUNTIME_LIBS)
