# json.sh - reads numbers and strings out of the one-line JSON objects that the programs print; to be sourced.

# json_get FILE KEY: the value of the first "KEY": in it (a number, a word, or a string without escapes)
json_get() {
    awk -v key="\"$2\":" '{
        i = index($0, key)
        if (!i) next
        s = substr($0, i + length(key))
        sub(/^ */, "", s)
        if (substr(s, 1, 1) == "\"") { s = substr(s, 2); sub(/".*/, "", s) } else sub(/[,}\]].*/, "", s)
        print s
        exit
    }' "$1"
}

# json_list FILE KEY: every value of KEY, a line each
json_list() {
    awk -v key="\"$2\":" '{
        s = $0
        while ((i = index(s, key)) > 0) {
            s = substr(s, i + length(key))
            v = s
            sub(/^ */, "", v)
            sub(/[,}\]].*/, "", v)
            print v
        }
    }' "$1"
}

# json_part FILE KEY OBJECT: a value inside the object that stands under OBJECT
json_part() {
    sed -n 's/.*"'"$3"'":\({[^}]*}\).*/\1/p' "$1" | sed -n 's/.*"'"$2"'":\([^,}]*\).*/\1/p' | tr -d '"'
}

# median of the numbers on standard input
median() {
    sort -g | awk '{ v[NR] = $1 } END { print NR ? (NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2) : "nan" }'
}
