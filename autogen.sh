#!/bin/sh
# Makes configure out of configure.ac. Needs autoconf, automake, libtool's m4 and pkg-config.
cd "$(dirname "$0")" && exec autoreconf -fi
