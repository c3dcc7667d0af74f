# Tests of what is delivered: installation, completion, benchmarks of budgets.
pi_cli_tests += tests/cli/install.sh tests/cli/completion.sh tests/cli/budgets.sh tests/cli/deb.sh
tests/cli/completion.log: $(nodist_man_MANS) $(pi_completions) $(bin_PROGRAMS)
# So that a source archive makes the package too.
EXTRA_DIST += debian/changelog debian/control debian/copyright debian/rules debian/source/format
tests/cli/install.log: all-am
print-pkgdatadir:
	@echo '$(pkgdatadir)'
.PHONY: print-pkgdatadir
