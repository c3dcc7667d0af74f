#!/bin/sh
# Makes configure out of configure.ac. Needs autoconf, automake and pkg-config.
cd "$(dirname "$0")" && exec autoreconf -fi
