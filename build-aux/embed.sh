#!/bin/sh
# embed.sh PREFIX HEADER FILE...: a C file on standard output that holds the files as arrays PREFIX_EXT (page.css: PREFIX_css) and sizes PREFIX_EXT_size, as HEADER declares them.
# Needs od and sed of POSIX alone.
set -eu
prefix=$1 header=$2
shift 2
echo '/* Made by build-aux/embed.sh. */'
echo "#include \"$header\""
for f; do
    name=${prefix}_${f##*.}
    printf '\nconst unsigned char %s[] = {\n' "$name"
    od -A n -v -t x1 "$f" | sed 's/[[:space:]]*\([0-9a-f][0-9a-f]\)/0x\1,/g'
    printf '};\nconst size_t %s_size = sizeof(%s);\n' "$name" "$name"
done
