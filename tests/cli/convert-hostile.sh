#!/bin/sh
# pi-convert and GGUF files that are well formed and mean harm or nothing: keys of wrong kinds and sizes, vocabularies, parts that do not belong together.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/tests/cli/convert_lib.sh"
mkdir "$tmp/out.d"
out=$tmp/out.d/m.gguf
model llama-relu f16
m=$tmp/llama-relu.gguf

edit() { edit_gguf "$m" "$tmp/lie.gguf" "$@"; }
harm() { # STATUS PATTERN EDIT...: named by its first edit
    status=$1 pattern=$2
    shift 2
    edit "$@"
    refused "$status" "$pattern" "$1"
}

# Elements of another type than the one that is read, other counts than tokens.
for t in u8 i8 u16 i32 str bool f64; do harm 3 'array of .*, not of f32' "tokenizer.ggml.scores:$t*1024=1"; done
for t in u8 i8 u16 str f32 u64; do harm 3 'array of .*, not of i32' "tokenizer.ggml.token_type:$t*1024=1"; done
for t in u8 i32 f32; do harm 3 'array of .*, not of string' "tokenizer.ggml.tokens:$t*1024=1"; done
harm 3 'not an array' tokenizer.ggml.tokens:str=x
harm 3 'not an array' tokenizer.ggml.scores:f32=1
harm 3 '1023 entries for 1024' 'tokenizer.ggml.scores:f32*1023=1'
harm 3 '1025 entries for 1024' 'tokenizer.ggml.token_type:i32*1025=1'
harm 3 'has 1025 tokens' 'tokenizer.ggml.tokens:str*1025=x'
for t in -1 0 7 99 2147483647 -2147483648; do harm 3 "token 300 has type $t" "value:tokenizer.ggml.token_type:300=$t"; done
harm 3 'not a number' value:tokenizer.ggml.scores:300=nan
for k in tokens scores model; do harm 3 "tokenizer.ggml.$k is missing" -tokenizer.ggml.$k; done
for v in u32=1024 i32=-2 str=x f32=1; do harm 3 'bos_token_id' tokenizer.ggml.bos_token_id:$v; done
harm 3 'eos_token_id' tokenizer.ggml.eos_token_id:u64=18446744073709551614

# Texts of tokens. Byte tokens decide where in a table of 256 something is written.
for t in '<0x-1>' '<0xZZ>' '<0x' '<0x100>' '<0x4>' '' A '<0x0041>' '<0x 1>' '<0x41' '0x41' '<0X41>'; do harm 3 'token 68: byte token' "token:68=$t"; done
harm 3 'both stand for byte' 'token:68=<0x42>'
for t in '<0x-1>' '<0xZZ>' '<0x' ''; do edit "token:400=$t"; taken "a token '$t' that stands for no byte"; done
edit 'token:400*1048576=a'
taken 'a token of a mebibyte'
harm 3 'special token 1 has 1048576 bytes' 'token:1*1048576=a'
harm 3 'special token 300 has 1048576 bytes' 'token:300*1048576=a' value:tokenizer.ggml.token_type:300=4
edit tokenizer.ggml.model:str=bert
works 'a tokenizer that is not known here' pi-convert "$tmp/lie.gguf" -o "$out"
grep -q 'lie.gguf: tokenizer.ggml.model "bert" is not supported.*: pi-run will not run the result' "$tmp/err" && pi-convert -q "$tmp/lie.gguf" --list >/dev/null
check $? 'is told'
rm "$out"

# Sizes.
for v in u32=0 u32=4294967295 i32=-1 i32=-2147483648 u64=18446744073709551615 u64=4294967299 str=3 f32=3 bool=1; do
    for k in block_count attention.head_count attention.head_count_kv embedding_length feed_forward_length context_length attention.key_length rope.dimension_count; do
        harm 3 "llama.$k" llama.$k:$v
    done
done
for count in 4 512 513 1024 1025; do harm 3 'blk.3.attn_norm.weight|1 to 1024' llama.block_count:u32=$count; done
harm 4 'no place in architecture llama of 2 layers' llama.block_count:u32=2
harm 3 'no multiple of 6' llama.attention.head_count:u32=5
harm 3 'no multiple of 5' llama.attention.head_count_kv:u32=5
harm 3 'the keys say 96 x 24' llama.attention.head_count:u32=12 llama.attention.key_length:u32=2 llama.attention.value_length:u32=2 llama.rope.dimension_count:u32=2
harm 3 'wider than' llama.attention.head_count:u32=6 llama.attention.key_length:u32=1048576
harm 3 'the keys say 97 x' llama.embedding_length:u32=97
harm 3 'the keys say 96 x 321' llama.feed_forward_length:u32=321
harm 3 'odd: 5' llama.rope.dimension_count:u32=5
for k in attention.layer_norm_rms_epsilon rope.freq_base; do
    for v in f32=nan f32=inf f32=-1 f64=1e300 u32=1 str=x; do harm 3 "llama.$k" llama.$k:$v; done
done
for f in 0 -1 nan 1e30; do harm 3 'rope.scaling.factor' llama.rope.scaling.factor:f32=$f llama.rope.scaling.type:str=linear; done
harm 4 'not supported' llama.rope.scaling.type:str=mystery
harm 4 'a mixture of 8 experts' llama.expert_count:u32=8
harm 4 '"mystery" is not supported' llama.hidden_activation:str=mystery
harm 3 'hidden_activation_threshold is missing' llama.hidden_activation:str=fatrelu
harm 3 'no(t a)? string' general.architecture:u32=1
harm 4 'not supported' general.architecture:str=
for k in general.architecture llama.block_count llama.embedding_length llama.attention.layer_norm_rms_epsilon; do harm 3 "$k is missing" -$k; done
harm 3 'is missing' bare

# Tensors under other names.
harm 3 "token_embd.weight' is missing" drop=token_embd.weight
harm 3 "blk.1.ffn_up.weight' is missing" drop=blk.1.ffn_up.weight
harm 3 'lie.gguf: both blk.1.ffn_down.weight and blk.1.ffn_down_t.weight' name=blk.1.ffn_up.weight=blk.1.ffn_down.weight
harm 4 'no place' name=blk.1.ffn_up.weight=blk.99999999999999999999.ffn_up.weight
harm 3 'blk.0.attn_q.weight is 96 x 320' name=blk.0.ffn_up.weight=blk.0.attn_q.weight name=blk.0.attn_q.weight=blk.0.ffn_up.weight
harm 3 'only one of fc1' name=blk.1.ffn_up.weight=blk.1.fc1.weight

# Weights that are no numbers of ours, 25 is I16, 26 I32: told at once, and by a list, too.
for t in blk.0.ffn_down_t.weight:25 blk.2.attn_q.weight:25 token_embd.weight:25 output_norm.weight:26 blk.1.attn_norm.weight:26; do
    harm 4 "tensor ${t%:*} is I(16|32), which no kernel here reads" "type=${t%:*}=${t#*:}"
    fails 4 'which no kernel here reads' "type ${t#*:}: a list" pi-convert -q "$tmp/lie.gguf" --list
done
edit copy=blk.0.attn_norm.weight=blk.0.attn_rot_embd type=blk.0.attn_rot_embd=26
taken 'integers where nobody reads'

# Tensors that nobody reads would be lost without a word: other forms of parts, other spellings of layers, parts of other architectures.
beside() { # STATUS PATTERN OLD NEW: NEW beside the tensors that are there
    edit "copy=$3=$4"
    refused "$1" "$2" "$4 beside the others"
}
for t in blk.0.attn_q.scale blk.0.attn_norm.bias blk.0.attn_q.weight.x blk.0.attn_q blk.0.attn_q_norm.weight blk.0.attn_norm_2.weight position_embd.weight project_in.bias \
    output_norm.bias output.bias output.scale token_embd.bias token_embd_norm.weight; do
    beside 4 "tensor $t has no place in architecture llama of 3 layers" blk.0.attn_norm.weight $t
done
for l in '' 00 01 +1 -0 0x0 4294967296 18446744073709551616; do beside 4 "blk.$l.ffn_up.weight has no place" blk.0.ffn_up.weight "blk.$l.ffn_up.weight"; done
beside 3 'both blk.1.attn_q.weight and blk.1.attn_qkv.bias' blk.1.attn_norm.weight blk.1.attn_qkv.bias
# Query, key and value in one matrix, here as wide as the feed-forward block, and one of them apart.
works 'a model for them' "$abs_top_builddir/bench/pi-synth" -q -o "$tmp/wide.gguf" --type f16 --layers 2 --embd 96 --ff 288 --heads 4 --vocab 320 --ctx 64 --rank 32
fused='copy=blk.1.ffn_up.weight=blk.1.attn_qkv.weight'
all='drop=blk.1.attn_q.weight drop=blk.1.attn_k.weight drop=blk.1.attn_v.weight'
edit_gguf "$tmp/wide.gguf" "$tmp/lie.gguf" $fused $all
taken 'a fused matrix'
edit_gguf "$tmp/wide.gguf" "$tmp/lie.gguf" $fused
refused 3 'lie.gguf: both blk.1.attn_q.weight and blk.1.attn_qkv.weight: which of them counts is not said' 'a fused matrix beside all three'
for p in q k v; do
    edit_gguf "$tmp/wide.gguf" "$tmp/lie.gguf" $fused $(echo "$all" | sed "s/drop=blk.1.attn_$p.weight//")
    refused 3 "lie.gguf: both blk.1.attn_$p.weight and blk.1.attn_qkv.weight: which" "a fused matrix beside attn_$p"
    edit_gguf "$tmp/wide.gguf" "$tmp/lie.gguf" $fused $all copy=blk.1.attn_norm.weight=blk.1.attn_$p.bias
    refused 3 "lie.gguf: both blk.1.attn_$p.bias and blk.1.attn_qkv.weight: which" "a fused matrix beside attn_$p's bias"
done
beside 3 'name of tensor 1 holds a NUL byte' token_embd.weight 'token_embd.weight%x'
for t in blk.0.attn_rot_embd blk.0.attn_rot_embd.weight blk.0.attn_rot_embd.freqs; do
    edit copy=blk.0.attn_norm.weight=$t
    taken "$t, which says nothing new"
done
edit copy=blk.0.attn_norm.weight=blk.0.attn_output.bias
taken 'a bias of a projection'
edit copy=blk.0.attn_norm.weight=something.weight
works 'a tensor that nobody knows, beside the layers' pi-convert "$tmp/lie.gguf" -o "$out"
check "$(grep -q 'tensor something.weight is not used here' "$tmp/err"; echo $?)" 'is told'
rm "$out"

# Time grows with the file, not with its square.
before=$(date +%s)
edit $(seq -f 'k%g:u32=1' 20000)
taken 'twenty thousand keys'
check "$([ $(($(date +%s) - before)) -le 20 ]; echo $?)" 'and that takes seconds'

# Models in parts. part NO NAME EDIT...: tensors 10 NO to 10 NO + 9 of the model's 30.
part() {
    no=$1 name=$2
    shift 2
    bare=bare
    [ "$no" != 0 ] || bare=-none
    edit_gguf "$m" "$tmp/p/$name" $bare only=$((10 * no))-$((10 * no + 10)) "$@"
}
sound() {
    rm -rf "$tmp/p"
    mkdir "$tmp/p"
    for i in 0 1 2; do part $i m-0000$((i + 1))-of-00003.gguf split.no:u16=$i split.count:u16=3 split.tensors.count:i32=30; done
}
first=$tmp/p/m-00001-of-00003.gguf second=m-00002-of-00003.gguf third=m-00003-of-00003.gguf
apart() { # STATUS PATTERN NAME
    refused "$1" "$2" "parts: $3" "$first"
    sound
}
sound
works 'three parts' pi-convert -q "$first" -o "$out"
works 'and the whole' pi-convert -q "$m" -o "$tmp/whole.gguf"
cmp -s "$out" "$tmp/whole.gguf"
check $? 'are the same model'
rm "$out"
refused 4 'name the first part' 'parts: named by the second' "$tmp/p/$second"
for p in $second $third; do rm "$tmp/p/$p"; apart 7 "$p: .*No such file" "without $p"; done
part 1 $second split.no:u16=1 split.count:u16=4 split.tensors.count:i32=30; apart 3 'part 2 of 4' 'another count in one'
part 1 $second split.no:u16=1 split.count:u16=3 split.tensors.count:i32=31; apart 3 "$second: .*31 tensors" 'another number of tensors in one'
cp "$tmp/p/$second" "$tmp/p/$third"; apart 3 "$third: part 2 of 3" 'one twice'
mv "$tmp/p/$second" "$tmp/p/x"; mv "$tmp/p/$third" "$tmp/p/$second"; mv "$tmp/p/x" "$tmp/p/$third"; apart 3 "$second: part 3 of 3" 'out of order'
part 0 $second split.no:u16=1 split.count:u16=3 split.tensors.count:i32=30; apart 3 'occurs twice' 'the same tensors in two'
part 1 $second split.no:u16=1 split.count:u16=3 split.tensors.count:i32=30 drop=blk.1.attn_v.weight; apart 3 '29 tensors in all parts, 30 are due' 'a tensor in none'
edit_gguf "$m" "$tmp/p/$second" -split.no only=10-20; apart 3 "$second: .*split.no is missing" 'a whole file for one'
part 1 $second split.no:u16=1 split.count:u16=3 split.tensors.count:i32=30 name=blk.1.attn_v.weight=blk.1.attn_x.weight; apart '[34]' 'blk.1.attn_[vx].weight' 'another tensor in one'
head -c 3000 "$tmp/p/$second" >"$tmp/p/x"; mv "$tmp/p/x" "$tmp/p/$second"; apart 3 "$second: truncated" 'one cut short'
: >"$tmp/p/$third"; apart 3 "$third: " 'one empty'
rm "$tmp/p/$third"; mkdir "$tmp/p/$third"; apart 7 "$third: " 'a folder for one'
rm "$tmp/p/$third"; mkfifo "$tmp/p/$third"; apart 7 "$third: " 'a pipe for one'
model llama-silu-gqa-tied f16
edit_gguf "$tmp/llama-silu-gqa-tied.gguf" "$tmp/p/$second" bare split.no:u16=1 split.count:u16=3 split.tensors.count:i32=30 only=10-20; apart 3 'occurs twice|is missing|no place|the keys say' "another model's"
for v in u16=0 u32=65536 u32=4294967295 i32=-1 u64=18446744073709551615 u16=2 str=3 f32=3; do
    part 0 "${first##*/}" split.no:u16=0 split.count:$v split.tensors.count:i32=30
    apart '[34]' "m-00001-of-00003.gguf" "count $v"
done
for v in u16=1 u32=4294967295 i32=-1 str=0; do
    part 0 "${first##*/}" split.no:$v split.count:u16=3 split.tensors.count:i32=30
    apart '[34]' "m-00001-of-00003.gguf" "number $v"
done
for v in i32=0 i32=-1 u64=18446744073709551615 u32=29 str=30; do
    part 0 "${first##*/}" split.no:u16=0 split.count:u16=3 split.tensors.count:$v
    apart 3 'm-0000[12]-of-00003.gguf' "tensors $v"
done
mv "$first" "$tmp/p/m-00001-of-65535.gguf"
edit_gguf "$m" "$tmp/p/m-00001-of-65535.gguf" split.no:u16=0 split.count:u16=65535 split.tensors.count:i32=30 only=0-10
refused 7 'm-00002-of-65535.gguf' 'parts: 65535 of them, one there' "$tmp/p/m-00001-of-65535.gguf"
mv "$tmp/p/m-00001-of-65535.gguf" "$tmp/p/first.gguf"
refused 4 'must be called' 'parts: under another name' "$tmp/p/first.gguf"

# Directories: numbers of a configuration, names in an index.
src=$ref/llama-relu
fresh() {
    rm -rf "$tmp/s"
    cp -r "$src" "$tmp/s"
    chmod -R u+w "$tmp/s"
}
for k in num_hidden_layers num_attention_heads num_key_value_heads hidden_size intermediate_size vocab_size max_position_embeddings; do
    for v in 0 -1 4294967295 9223372036854775807 18446744073709551616 1e300 3.5 '"3"' true '[3]'; do
        fresh
        sed "s/\"$k\": *[^,}]*/\"$k\": $v/" "$src/config.json" >"$tmp/s/config.json"
        refused 3 "$k|too big integer" "$k is $v" "$tmp/s"
    done
done
index() { # STATUS PATTERN INDEX
    fresh
    mv "$tmp/s/model.safetensors" "$tmp/s/one.safetensors"
    printf %s "$3" >"$tmp/s/model.safetensors.index.json"
    refused "$1" "$2" "an index $3" "$tmp/s"
}
for f in ../../../etc/passwd /etc/passwd ../s/one.safetensors x/../one.safetensors ''; do index 3 'no name of a shard' "{\"weight_map\":{\"a\":\"$f\"}}"; done
for map in 7 '{}' '[]' null; do index 3 'no "weight_map"' "{\"weight_map\":$map}"; done
index 3 'no JSON object|not a JSON object' '[]'
index 3 'has no shard' '{"weight_map":{"a":7}}'
index 3 'index.json: ' '{"weight_map":{"a":"b\u0000c"}}'
index 3 'header of' '{"weight_map":{"a":"model.safetensors.index.json"}}'
index 3 'nope.weight is not in one.safetensors' '{"weight_map":{"nope.weight":"one.safetensors"}}'
index 7 'shard is missing' '{"weight_map":{"a":"."}}'
index 7 'two.safetensors: shard is missing' '{"weight_map":{"a":"two.safetensors"}}'

# --keep.
kept() { # STATUS PATTERN NAME OPTION...
    status=$1 pattern=$2 what=$3
    shift 3
    fails "$status" "$pattern" "--keep: $what" timeout -s KILL 60 pi-convert -q "$m" -o "$out" "$@"
    check "$([ -z "$(ls -A "$tmp/out.d")" ]; echo $?)" "--keep: $what: nothing left"
}
kept 2 'no matrix of this model' 'nothing has such a name' --keep 'blk.7.*=q8_0'
kept 2 'no matrix of this model' 'the case of a name counts' --keep OUTPUT.WEIGHT=q8_0
kept 2 'no matrix of this model' 'a vector' --keep output_norm.weight=f16
kept 2 'earlier patterns' 'the same twice' --keep output.weight=q8_0 --keep output.weight=q8_0
kept 2 'earlier patterns' 'the same twice, another type' --keep output.weight=q8_0 --keep output.weight=f16
kept 2 'earlier patterns' 'behind one that takes all' --keep '*=f16' --keep 'blk.0.*=q8_0'
for t in q9_0 q4_k_m q8 i8 u8 f64 q2_k iq4_nl '' ' ' 'f16 ' f16,q8_0; do kept 2 'keep' "no type '$t'" --keep "output.weight=$t"; done
for p in '[a=f16' '\=f16' '*=*=f16' '=='; do kept 2 'keep' "a pattern '$p'" --keep "$p"; done
works '--keep: rows of 96 have no blocks of 256' pi-convert "$m" -o "$out" --keep output.weight=q4_k --json
grep -q 'output.weight: rows of 96: stored as Q8_0, not Q4_K' "$tmp/err" && [ "$(grep -o '"type":"Q8_0"' "$tmp/out" | wc -l)" = 1 ]
check $? '--keep: the wider type is told'
rm "$out"
echo "1..$n"
