#!/bin/sh
# pi-convert and files that are damaged, hostile, or not what they are called: one line, a status, nothing left behind.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/tests/cli/convert_lib.sh"
src=$ref/llama-relu
mkdir "$tmp/out.d" "$tmp/s"
out=$tmp/out.d/m.gguf

fresh() {
    rm -rf "$tmp/s"
    cp -r "$src" "$tmp/s"
    chmod -R u+w "$tmp/s"
}

bad() { # STATUS PATTERN NAME [SOURCE]
    refused "$1" "$2" "$3" "${4-$tmp/s}"
    fresh
}

# What a clone without Git LFS leaves.
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 5\n' 0 >"$tmp/lfs"
fresh
for f in model.safetensors config.json tokenizer.model; do
    cp "$tmp/lfs" "$tmp/s/$f"
    bad 3 "$f: is a Git LFS pointer" "a pointer for $f"
done
bad 3 'lfs: is a Git LFS pointer' 'a pointer for a GGUF file' "$tmp/lfs"

# What is given in place of a model.
bad 2 'model.safetensors: weights alone; give the folder' 'weights without their folder' "$tmp/s/model.safetensors"
mkdir "$tmp/hub"
: >"$tmp/hub/M-Q4_0.gguf"
bad 2 "no config.json in it, so no Hugging Face folder; give the GGUF file itself: $tmp/hub/M-Q4_0.gguf" 'a folder of GGUF files' "$tmp/hub"
rm -r "$tmp/hub"

# Sizes.
truncate -s 268435457 "$tmp/s/tokenizer_config.json"
bad 3 'tokenizer_config.json: more than 268435456 bytes' 'a side file without end'
{ printf '{"a":['; yes 1, | head -n 20000000 | tr -d '\n'; printf '1]}'; } >"$tmp/s/tokenizer_config.json"
if (ulimit -v 700000 && timeout -s KILL 20 pi-convert --version) >/dev/null 2>&1; then
    (ulimit -v 700000; timeout -s KILL 60 pi-convert -q "$tmp/s" -o "$out" -t 1) 2>"$tmp/err"
    check "$([ $? = 6 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -q . "$tmp/err"; echo $?)" 'JSON that memory has no room for'
else
    n=$((n + 1))
    echo "ok $n # SKIP a limit on memory that the program itself does not fit"
fi
fresh
sed 's/<0x41>/<0xZZ>/' "$src/tokenizer.model" >"$tmp/s/tokenizer.model"
bad 3 "$tmp/s: token 68: byte token" 'a tokenizer is named by the path that was given'

# Long tokens whose every cut might be a merge.
rm "$tmp/s/tokenizer.model"
{
    printf '{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\342\226\201"},{"type":"Replace","pattern":{"String":" "},"content":"\342\226\201"}]},'
    printf '"model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":{'
    awk 'BEGIN {
        for (i = 0; i < 256; i++) printf "\"<0x%02X>\":%d,", i, i
        a = sprintf("%4080s", ""); gsub(/ /, "a", a)
        for (i = 0; i < 5000; i++) printf "%s\"%06d%s\":%d", (i > 0 ? "," : ""), i, a, 256 + i
    }'
    printf '}}}'
} >"$tmp/s/tokenizer.json"
before=$(date +%s)
taken 'five thousand tokens of 4 KiB' "$tmp/s"
check "$([ $(($(date +%s) - before)) -le 10 ]; echo $?)" 'and that takes seconds'
fresh

# What is in the folder and cannot be read is not absent.
for f in tokenizer_config.json generation_config.json special_tokens_map.json added_tokens.json tokenizer.model model.safetensors chat_template.jinja config.json; do
    for what in link folder pipe; do
        rm -f "$tmp/s/$f"
        case $what in
        link) ln -s ../blobs/gone "$tmp/s/$f" ;;
        folder) mkdir "$tmp/s/$f" ;;
        pipe) mkfifo "$tmp/s/$f" ;;
        esac
        bad 7 "$f: |open .*$f" "a $what for $f"
    done
done
fails 2 'needs a name' 'an output without a name' pi-convert -q "$src" -o ''

# A value that the target cannot hold: the largest of F32, the last of the last matrix.
model llama-relu f32
edit_gguf "$tmp/llama-relu.gguf" "$tmp/big.gguf"
{ head -c -4 "$tmp/big.gguf"; printf '\377\377\177\177'; } >"$tmp/big2.gguf"
for t in bf16 q8_0 q4_0; do
    fails 4 'weight holds 3.4.*e\+38, which (BF16|Q[48]_0) cannot: use --type f32' "the largest number in $t" pi-convert -q "$tmp/big2.gguf" -o "$out" --type $t --no-self-check
    check "$([ -z "$(ls -A "$tmp/out.d")" ]; echo $?)" 'nothing is left'
done

# Outputs that cannot be told of, and links.
pi-convert -q "$src" -o "$out" --json >/dev/full 2>"$tmp/err"
check "$([ $? = 7 ] && [ -z "$(ls -A "$tmp/out.d")" ]; echo $?)" 'no model where its report could not be written'
mkdir "$tmp/real"
: >"$tmp/real/m.gguf"
ln -s "$tmp/real/m.gguf" "$out"
works 'an output through a link' pi-convert -q "$src" -o "$out"
check "$([ -L "$out" ] && [ -s "$tmp/real/m.gguf" ]; echo $?)" 'the link stays, the file is written'
cp "$tmp/real/m.gguf" "$tmp/m.gguf"
rm "$tmp/real/m.gguf"
fails 7 'leads nowhere' 'a link to nothing' pi-convert -q "$src" -o "$out"
rm "$out"

# Statistics beside a file that are another model's, and damaged ones.
mkdir "$tmp/activation"
echo x >"$tmp/activation/activation_0.pt"
works "one model's folder of statistics beside another" pi-convert "$tmp/m.gguf" -o "$out"
check "$(grep -q "another model's activation counts, left out" "$tmp/err"; echo $?)" 'is told and left out'
rm "$out"
for i in 1 2; do echo x >"$tmp/activation/activation_$i.pt"; done
bad 3 'activation_0.pt' 'damaged statistics' "$tmp/m.gguf"
rm -r "$tmp/activation"

# GGUF headers that lie.
head_of 1 0 0 >"$tmp/head"; lie 4 'version 1' 'version 1'
head_of 4 0 0 >"$tmp/head"; lie 4 'version 4' 'version 4'
head_of $((3 << 24)) 0 0 >"$tmp/head"; lie 4 'big-endian' 'the other byte order'
for count in $((1 << 60)) $((1 << 62)) -1 9223372036854775807 4294967296; do
    head_of 3 "$count" 0 >"$tmp/head"; lie 3 'truncated' "$count tensors"
    head_of 3 0 "$count" >"$tmp/head"; lie 3 'truncated' "$count keys"
    head_of 2 "$count" "$count" >"$tmp/head"; lie 3 'truncated' "$count of both, version 2"
    { head_of 3 0 1; number "$count" 8; } >"$tmp/head"; lie 3 'truncated' "a key of $count bytes"
    { head_of 3 0 1; str k; number 8 4; number "$count" 8; } >"$tmp/head"; lie 3 'truncated' "a text of $count bytes"
    { head_of 3 0 1; str k; number 9 4; number 4 4; number "$count" 8; } >"$tmp/head"; lie 3 'truncated' "an array of $count"
    { head_of 3 0 1; str k; number 9 4; number 8 4; number "$count" 8; } >"$tmp/head"; lie 3 'truncated' "$count texts"
    { head_of 3 1 0; str t; number 1 4; number "$count" 8; number 0 4; number 0 8; } >"$tmp/head"; lie 3 'tensor t' "a tensor of $count"
    { head_of 3 1 0; str t; number 2 4; number "$count" 8; number 32 8; number 2 4; number 0 8; } >"$tmp/head"; lie 3 'tensor t' "rows of $count in Q4_0"
done
{ head_of 3 0 1; str k; number 9 4; number 9 4; number 1 8; number 9 4; number 1 8; } >"$tmp/head"; lie 4 'array of arrays' 'arrays in arrays'
{ head_of 3 0 1; str k; number 77 4; } >"$tmp/head"; lie 4 'value type 77' 'an unknown kind of value'
{ head_of 3 0 2; str k; number 4 4; number 1 4; str k; number 4 4; number 1 4; } >"$tmp/head"; lie 3 'occurs twice' 'a key given twice'
{ head_of 3 0 1; str ''; number 4 4; number 1 4; } >"$tmp/head"; lie 3 'key of 0 bytes' 'a key without a name'
for a in 0 3 7 2147483648; do
    { head_of 3 0 1; str general.alignment; number 4 4; number $a 4; } >"$tmp/head"; lie 3 "alignment $a" "alignment $a"
done
{ head_of 3 0 1; str general.alignment; number 8 4; str 32; } >"$tmp/head"; lie 3 'no u32' 'an alignment in words'
for d in 0 5 4294967295; do
    { head_of 3 1 0; str t; number $d 4; number 1 8; } >"$tmp/head"; lie 3 'dimensions' "$d dimensions"
done
{ head_of 3 1 0; str t; number 1 4; number 0 8; number 0 4; number 0 8; } >"$tmp/head"; lie 3 'dimension 0 is 0' 'an empty tensor'
{ head_of 3 1 0; str t; number 1 4; number 8 8; number 999 4; number 0 8; } >"$tmp/head"; lie 4 'type 999' 'an unknown type'
{ head_of 3 1 0; str t; number 1 4; number 8 8; number 0 4; number 8 8; } >"$tmp/head"; lie 3 'no multiple' 'an offset between'
for o in 0 32; do
    { head_of 3 2 0; str t; number 1 4; number 16 8; number 0 4; number 0 8; str u; number 1 4; number 16 8; number 0 4; number $o 8; } >"$tmp/head"; lie 3 'where the tensors before it end' "tensors that overlap at $o"
done
{ head_of 3 2 0; str t; number 1 4; number 8 8; number 0 4; number 0 8; str t; number 1 4; number 8 8; number 0 4; number 32 8; } >"$tmp/head"; lie 3 'occurs twice' 'a tensor given twice'
{ head_of 3 0 1; str general.architecture; number 8 4; str bloom; } >"$tmp/head"; lie 4 'bloom' 'another architecture'
rm -f "$tmp/lie.gguf"

# Sums and products that wrap: one tensor each would do, the second one starts where 64 bits end, or rows and paddings come out small.
two() { # ELEMENTS TYPE OFFSET
    { head_of 3 2 0; str t; number 1 4; number "$1" 8; number "$2" 4; number 0 8; str u; number 1 4; number "$1" 8; number "$2" 4; number "$3" 8; } >"$tmp/head"
}
two $((1 << 61)) 0 $((1 << 63)); lie 3 'tensor t needs 9223372036854775808' 'two tensors of 2^63 bytes'
two $((1 << 60)) 0 $((1 << 62)); lie 3 'tensor t' 'two tensors of 2^62 bytes'
two $(((1 << 62) - 1)) 0 -32; lie 3 'tensor t' 'a padding that wraps'
two 16 0 -32; lie 3 'tensor u' 'an offset that wraps'
two $(((1 << 42) + 1)) 0 32; lie 3 'tensor t' 'a tensor of terabytes'
for type in 2 8; do # Q4_0, Q8_0
    for size in 512409557603043100 542316383328 9223372036854775776; do
        two $size $type 32; lie 3 'tensor t' "rows of $size in type $type"
    done
done
{ head_of 3 1 0; str t; number 4 4; for _ in 1 2 3 4; do number 65536 8; done; number 0 4; number 0 8; } >"$tmp/head"; lie 3 '2\^63 elements' 'a product that wraps to 0'
for size in 384307168202282326 288230376151711744 329406144173384851 1024 70; do # times the size of a table's entry: about 2^64
    head_of 3 "$size" 0 >"$tmp/head"; lie 3 'truncated|name of 0 bytes|beyond' "a table of $size tensors"
    head_of 3 0 "$size" >"$tmp/head"; lie 3 'truncated|key of 0 bytes' "a table of $size keys"
done
{ head_of 3 0 1; str k; number 8 4; number 1073741824 8; } >"$tmp/head"; lie 3 truncated 'a gibibyte of text in a small file'
{ head_of 3 0 1; str tokenizer.ggml.tokens; number 9 4; number 8 4; number 1 8; number 2147483648 8; } >"$tmp/head"; lie 3 truncated 'a token of 2 GiB'
{ head_of 3 0 1; str general.alignment; number 5 4; number 32 4; } >"$tmp/head"; lie 3 'no u32' 'an alignment with a sign'

# safetensors headers that lie.
tensors() { # STATUS PATTERN NAME HEADER
    { number ${#4} 8; printf %s "$4"; head -c 64 /dev/zero; } >"$tmp/s/model.safetensors"
    bad "$1" "$2" "$3"
}
for count in 0 1 -1 9223372036854775807 4294967296; do
    { number "$count" 8; printf '{}'; } >"$tmp/s/model.safetensors"
    bad 3 'header of' "a header of $count bytes"
done
tensors 3 'do not lie' 'offsets behind the end' '{"a":{"dtype":"F32","shape":[32],"data_offsets":[0,128]}}'
tensors 3 'do not lie' 'an end before its begin' '{"a":{"dtype":"F32","shape":[16],"data_offsets":[64,0]}}'
tensors 3 'pair of offsets' 'offsets below 0' '{"a":{"dtype":"F32","shape":[16],"data_offsets":[-64,0]}}'
tensors 3 'do not take' 'a shape of other bytes' '{"a":{"dtype":"F32","shape":[15],"data_offsets":[0,64]}}'
tensors 3 '64 bits' 'a product that wraps to 0' '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
tensors 4 'dtype F99' 'an unknown dtype' '{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,9999999]}}'
tensors 3 'overlap' 'tensors that overlap' '{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"b":{"dtype":"F32","shape":[12],"data_offsets":[16,64]}}'
tensors 3 'line' 'nesting without end' "{\"a\":$(printf '%010000d' 0 | tr 0 '[')"
{ # a hundred thousand tensors
    printf '{'
    seq 0 99999 | awk '{ printf "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}", (NR > 1 ? "," : ""), $1, 4 * $1, 4 * $1 + 4 }'
    printf '}'
} >"$tmp/json"
{ number "$(wc -c <"$tmp/json")" 8; cat "$tmp/json"; head -c 400000 /dev/zero; } >"$tmp/s/model.safetensors"
before=$(date +%s)
refused 3 'is missing' 'a hundred thousand tensors' "$tmp/s"
check "$([ $(($(date +%s) - before)) -le 20 ]; echo $?)" 'and that takes seconds'
tensors 3 'tensor name of 1000000 bytes' 'a name of a megabyte' "{\"$(head -c 1000000 /dev/zero | tr '\0' a)\":{\"dtype\":\"F32\",\"shape\":[32],\"data_offsets\":[0,128]}}"

# Checkpoints of PyTorch: the form that is a pickle alone, a cut archive, none.
torch() { # STATUS PATTERN NAME, file in $tmp/bytes
    rm "$tmp/s/model.safetensors"
    cp "$tmp/bytes" "$tmp/s/pytorch_model.bin"
    bad "$1" "pytorch_model.bin: $2" "$3"
}
printf '\200\002\212\012l\374\234F\371 j\250P\031.\200\002' >"$tmp/bytes"; torch 4 '.*form before 1.6' 'a checkpoint before 1.6'
{ printf 'PK\003\004'; head -c 60 /dev/zero; } >"$tmp/bytes"; torch 3 '.*directory is missing' 'the front of an archive'
{ printf 'PK\005\006'; head -c 18 /dev/zero; } >"$tmp/bytes"; torch '[34]' '' 'an archive of nothing'
printf 'cposix\nsystem\n(S"touch %s"\ntR.' "$tmp/touched" >"$tmp/bytes"; torch '[34]' '' 'a pickle that wants something done'
check "$([ ! -e "$tmp/touched" ]; echo $?)" 'nothing was done'
: >"$tmp/bytes"; torch '[34]' '' 'an empty checkpoint'
echo "1..$n"
