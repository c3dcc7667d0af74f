/*
 * pi_place_figures.h - the sections of a placement's report that have drawings: what budgets buy, where the time of a layer goes, what would change
 * the speed, what the GPU's memory is for. Each writes one <section> with its table; nothing where there is nothing to show.
 */
#ifndef PI_PLACE_FIGURES_H
#define PI_PLACE_FIGURES_H

#include "common/pi_page.h"
#include "solver/pi_plan.h"
#include "solver/pi_study.h"

void pi_figures_budget(struct pi_page *page, const struct pi_plan *plan, const struct pi_study *s);
void pi_figures_time(struct pi_page *page, const struct pi_plan *plan);
void pi_figures_changes(struct pi_page *page, const struct pi_plan *plan, const struct pi_study *s);
void pi_figures_memory(struct pi_page *page, const struct pi_plan *plan);

#endif
