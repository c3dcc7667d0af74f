# Tests of solver: pi_unit_tests += tests/t_x; tests_t_x_SOURCES = ...; pi_cli_tests += tests/cli/x.sh; EXTRA_DIST += data
pi_unit_tests += tests/t_ilp
tests_t_ilp_SOURCES = tests/t_ilp.c tests/tap.h
tests_t_ilp_LDADD   = libpi_solver.a $(PI_COMMON_LIBS) $(GLPK_LIBS)

pi_unit_tests += tests/t_hardware
tests_t_hardware_SOURCES = tests/t_hardware.c tests/tap.h
tests_t_hardware_LDADD   = $(PI_COMMON_LIBS)

pi_unit_tests += tests/t_plan
tests_t_plan_SOURCES = tests/t_plan.c tests/tiny_model.c tests/tiny_forward.c tests/tiny_model.h tests/tap.h
tests_t_plan_LDADD   = libpi_solver.a $(PI_RUNTIME_LIBS) $(GLPK_LIBS)

pi_unit_tests += tests/t_cost
tests_t_cost_SOURCES = tests/t_cost.c tests/tap.h
tests_t_cost_LDADD   = libpi_solver.a $(PI_RUNTIME_LIBS) $(GLPK_LIBS)

pi_cli_tests += tests/cli/place.sh

pi_unit_tests += tests/t_estimate
tests_t_estimate_SOURCES = tests/t_estimate.c tests/tiny_model.c tests/tiny_forward.c tests/tiny_model.h tests/tap.h
tests_t_estimate_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_gpu_context
tests_t_gpu_context_SOURCES = tests/t_gpu_context.c tests/tap.h
tests_t_gpu_context_LDADD   = $(PI_RUNTIME_LIBS)
if HAVE_CXX
pi_unit_tests += tests/t_gpu_context_emu
tests_t_gpu_context_emu_SOURCES = tests/t_gpu_context.c tests/tap.h
tests_t_gpu_context_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_estimate_gpu
tests_t_estimate_gpu_SOURCES = tests/t_estimate_gpu.c $(engine_rig)
tests_t_estimate_gpu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif

pi_unit_tests += tests/t_place_fit
tests_t_place_fit_SOURCES = tests/t_place_fit.c tests/tiny_model.c tests/tiny_forward.c tests/tiny_model.h tests/tap.h
tests_t_place_fit_LDADD   = $(PI_RUNTIME_LIBS)

# Reports of pi-profile and pi-place.
check_PROGRAMS += tests/check_html
tests_check_html_SOURCES = tests/check_html.c
pi_unit_tests += tests/t_report
tests_t_report_SOURCES = tests/t_report.c tests/scratch.h tests/tap.h
tests_t_report_LDADD   = $(PI_COMMON_LIBS)
pi_cli_tests += tests/cli/report.sh
