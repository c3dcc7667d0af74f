# libpi_solver.a: cost model, integer programs, hardware probe; pi-place, the one program that links GLPK.
noinst_LIBRARIES += libpi_solver.a
libpi_solver_a_SOURCES = \
	solver/pi_cost.c solver/pi_cost.h \
	solver/pi_ilp.c solver/pi_ilp.h solver/pi_ilp_int.h \
	solver/pi_ilp_glpk.c solver/pi_ilp_list.c \
	solver/pi_place.c solver/pi_place.h \
	solver/pi_place_figures.c solver/pi_place_figures.h \
	solver/pi_place_report.c solver/pi_place_report.h \
	solver/pi_plan.c solver/pi_plan.h \
	solver/pi_probe.c solver/pi_probe.h \
	solver/pi_report.c \
	solver/pi_study.c solver/pi_study.h
bin_PROGRAMS += pi-place
pi_place_SOURCES = solver/pi-place.c
pi_place_LDADD   = libpi_solver.a $(PI_RUNTIME_LIBS) $(GLPK_LIBS)
