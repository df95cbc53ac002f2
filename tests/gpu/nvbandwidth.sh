#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds NVIDIA's nvbandwidth from its source, to hold the probe's figures against on the same machine:
#   tests/gpu/nvbandwidth.sh SOURCE OUT        SOURCE: a checkout of nvbandwidth; OUT: a folder, gets the program
# Needs nvcc, and no more: where Boost is not installed, a few lines that are written here stand in for the one part of
# it that nvbandwidth uses (its command line). Prints the program's path.
set -eu

[ $# -eq 2 ] || { echo "usage: nvbandwidth.sh SOURCE OUT" >&2; exit 2; }
[ -f "$1/nvbandwidth.cpp" ] || { echo "nvbandwidth.sh: $1 is no source of nvbandwidth" >&2; exit 2; }
source=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
nvcc=$(command -v nvcc || echo "$cuda/bin/nvcc")
[ -x "$nvcc" ] || { echo "nvbandwidth.sh: no nvcc; set CUDA_HOME" >&2; exit 2; }
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")

# The driver's libraries themselves, under the names that a linker looks for, or the toolkit's stubs of them.
mkdir -p "$out/lib"
for library in libcuda.so libnvidia-ml.so; do
    for place in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64; do
        if [ -e "$place/$library.1" ]; then
            ln -sf "$place/$library.1" "$out/lib/$library"
            break
        fi
    done
done
libraries="-L$out/lib -L$cuda/lib64/stubs -L$cuda/targets/x86_64-linux/lib/stubs -lcuda -lnvidia-ml"

boost=
if printf '#include <boost/program_options.hpp>\nint main() {}\n' |
    c++ -x c++ - -lboost_program_options -o /dev/null 2>/dev/null; then
    libraries="$libraries -lboost_program_options"
else
    boost="-I$out/standin"
    mkdir -p "$out/standin/boost"
    cat >"$out/standin/boost/program_options.hpp" <<'HEADER'
#pragma once
#include <functional>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>
namespace boost { namespace program_options {
struct setter {
    bool takes = true, many = false;
    std::function<void(const std::string &)> set;
};
template <class T> struct setter_of : setter {
    T *to;
    explicit setter_of(T *to) : to(to) {}
    setter_of *multitoken() { many = true; return this; }
    setter_of *default_value(const T &given) { *to = given; return this; }
};
template <class T> void read(const std::string &text, T &to) {
    std::istringstream in(text);
    if (!(in >> to)) throw std::runtime_error(text);
}
inline void read(const std::string &text, std::vector<std::string> &to) { to.push_back(text); }
template <class T> setter_of<T> *value(T *to) {
    auto *made = new setter_of<T>(to);
    made->set = [to](const std::string &text) { read(text, *to); };
    return made;
}
inline setter_of<bool> *bool_switch(bool *to) {
    auto *made = new setter_of<bool>(to);
    made->takes = false;
    made->set = [to](const std::string &) { *to = true; };
    return made;
}
struct option { std::string name, letter; setter *how; };
struct options_description {
    std::vector<option> all;
    explicit options_description(const std::string &) {}
    options_description &add_options() { return *this; }
    options_description &operator()(const char *names, setter *how, const char *) {
        std::string text = names;
        auto comma = text.find(',');
        all.push_back({text.substr(0, comma), comma == std::string::npos ? "" : text.substr(comma + 1), how});
        return *this;
    }
    options_description &operator()(const char *names, const char *text) { return (*this)(names, nullptr, text); }
    options_description &add(const options_description &more) {
        all.insert(all.end(), more.all.begin(), more.all.end());
        return *this;
    }
};
inline std::ostream &operator<<(std::ostream &out, const options_description &options) {
    for (auto &one : options.all) out << "  --" << one.name << "\n";
    return out;
}
struct variables_map {
    std::set<std::string> given;
    std::size_t count(const std::string &name) const { return given.count(name); }
};
struct parsed { std::vector<std::string> words; const options_description *options; };
inline parsed parse_command_line(int count, char **words, const options_description &options) {
    return {std::vector<std::string>(words + 1, words + count), &options};
}
inline void store(const parsed &line, variables_map &map) {
    for (std::size_t i = 0; i < line.words.size(); i++) {
        const option *found = nullptr;
        for (auto &one : line.options->all)
            if (line.words[i] == "--" + one.name || (!one.letter.empty() && line.words[i] == "-" + one.letter)) found = &one;
        if (!found) throw std::runtime_error(line.words[i]);
        map.given.insert(found->name);
        if (!found->how) continue;
        if (!found->how->takes) { found->how->set(""); continue; }
        do {
            if (++i == line.words.size()) throw std::runtime_error(found->name);
            found->how->set(line.words[i]);
        } while (found->how->many && i + 1 < line.words.size() && line.words[i + 1][0] != '-');
    }
}
inline void notify(variables_map &) {}
}}
HEADER
fi

objects=
jobs=
for file in testcase.cpp testcases_ce.cpp testcases_sm.cpp kernels.cu memcpy.cpp nvbandwidth.cpp multinode_memcpy.cpp \
    multinode_testcases.cpp output.cpp json_output.cpp json/jsoncpp.cpp; do
    object=$out/$(basename "$file").o
    objects="$objects $object"
    # shellcheck disable=SC2086 # options are words
    "$nvcc" -std=c++17 -O3 -arch="${NVCC_ARCH:-native}" -DGIT_VERSION='""' -I"$source" $boost \
        -c "$source/$file" -o "$object" &
    jobs="$jobs $!"
done
for job in $jobs; do
    wait "$job"
done
# shellcheck disable=SC2086
"$nvcc" -arch="${NVCC_ARCH:-native}" $objects $libraries -o "$out/nvbandwidth"
echo "$out/nvbandwidth"
