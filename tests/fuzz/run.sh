#!/bin/sh
# Fuzzes the readers of checkpoints, data, tokenizers and configs with libFuzzer, one after the other, with one job at
# low priority.
#   tests/fuzz/run.sh                       each for 600 seconds
#   tests/fuzz/run.sh --seconds=60 index    one or some of those that `all` names below
# Needs clang++ with its libFuzzer; $CLANG names another. $SENTENCEPIECE_SOURCE, the folder of SentencePiece's
# sources, has that library compiled with the sanitizers, too; else the installed one is linked. Findings lie in
# build/fuzz/found/<name>: put them into corpus/<name> with the mend. Inputs that reached something new lie in
# build/fuzz/reached/<name>, from where the next run continues.
set -eu
cd "$(dirname "$0")/../.."
seconds=600
all="safetensors index huggingface llmc megatron megatron_tokens npy text idx clicks jpeg png tokenizer pieces added_tokens config"
names=
for argument; do
  case $argument in
    --seconds=*) seconds=${argument#*=} ;;
    *)
      case " $all " in
        *" $argument "*) names="$names $argument" ;;
        *)
          echo "tests/fuzz/run.sh: '$argument' is none of: $all" >&2
          exit 2
          ;;
      esac
      ;;
  esac
done
clang=${CLANG-$(command -v clang++ || command -v clang++-14)}
flags="-std=c++20 -DOFL_HAVE_JPEG -DOFL_HAVE_PNG -DOFL_HAVE_PCRE2 -DOFL_HAVE_UTF8PROC -g -O1 -fno-omit-frame-pointer -I."
sanitizers="-fsanitize=fuzzer,address,undefined,float-cast-overflow -fno-sanitize-recover=all"
sources="core/error.cc core/dims.cc core/dtype.cc core/boxes/runs.cc core/boxes/copy_box.cc core/system/file_check.cc examples/gpt_huggingface.cc oneflow_like/program/huggingface_config.cc
  tests/fuzz/readers.cc oneflow_like/checkpoint/safetensors.cc oneflow_like/checkpoint/index.cc
  oneflow_like/checkpoint/reader.cc oneflow_like/checkpoint/step_folders.cc oneflow_like/checkpoint/source.cc oneflow_like/checkpoint/name_table.cc
  oneflow_like/checkpoint/huggingface.cc oneflow_like/text/json_text.cc tests/fuzz/data_readers.cc
  core/random.cc core/hash_bytes.cc oneflow_like/data/files.cc oneflow_like/data/tokens.cc
  oneflow_like/data/token_files.cc oneflow_like/data/idx.cc oneflow_like/data/clicks.cc oneflow_like/data/decode.cc
  oneflow_like/data/images.cc oneflow_like/data/source.cc oneflow_like/launch/run_folder.cc oneflow_like/launch/help.cc
  oneflow_like/text/byte_pairs.cc oneflow_like/text/byte_pair_file.cc oneflow_like/text/added_tokens.cc oneflow_like/text/split.cc oneflow_like/text/utf8.cc oneflow_like/text/tokenizers.cc
  oneflow_like/text/piece_model.cc oneflow_like/text/module/sentence_pieces.cc tests/fuzz/linked_pieces.cc"
build=build/fuzz
mkdir -p $build

pieces=-lsentencepiece its_flags=
if [ -n "${SENTENCEPIECE_SOURCE-}" ]; then
  pieces=
  s=$SENTENCEPIECE_SOURCE
  printf '#define %s ""\n' VERSION PACKAGE PACKAGE_STRING > $build/config.h
  its_flags="-w -DHAVE_PTHREAD -D_USE_INTERNAL_STRING_VIEW -I$build -I$s -I$s/src -I$s/src/builtin_pb
    -I$s/third_party/protobuf-lite"
  for part in bpe char unigram word; do sources="$sources $s/src/${part}_model.cc"; done
  for part in error filesystem model_factory model_interface normalizer sentencepiece_processor util; do
    sources="$sources $s/src/$part.cc"
  done
  sources="$sources $(echo "$s"/src/builtin_pb/*.cc "$s"/third_party/protobuf-lite/*.cc "$s"/third_party/absl/flags/flag.cc)"
fi

objects=
for source in $sources; do
  with=$sanitizers
  case $source in  # it reads numbers where they are not aligned
    "${SENTENCEPIECE_SOURCE-none}"/*) with="-fsanitize=fuzzer,address $its_flags" ;;
    */module/sentence_pieces.cc) with="$sanitizers $its_flags" ;;
  esac
  object=$build/$(echo "${source%.cc}" | tr / _).o
  objects="$objects $object"
  # Again when it or any header has changed.
  if [ -n "$(find core oneflow_like examples tests/fuzz \( -name '*.h' -o -path "$source" \) -newer "$object" 2>&1)" ]; then
    # shellcheck disable=SC2086
    nice -n 15 "$clang" $flags $with -c "$source" -o "$object"
  fi
done

# Files in memory, where there is such a folder.
TMPDIR=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
failed=
for name in ${names:-$all}; do
  case $name in
    safetensors | index | huggingface) main=tests/fuzz/fuzz_$name.cc ;;
    *) main="tests/fuzz/fuzz_data.cc -DOFL_FUZZED=\"$name\"" ;;
  esac
  # shellcheck disable=SC2086
  nice -n 15 "$clang" $flags $sanitizers $main $objects $pieces -lglog -lgflags -lz -ljpeg -lpng -lpcre2-8 -lutf8proc \
    -o "$build/fuzz_$name"
  mkdir -p "$build/found/$name" "$build/reached/$name"
  nice -n 15 "$build/fuzz_$name" "$build/reached/$name" "tests/fuzz/corpus/$name" -dict=tests/fuzz/readers.dict \
    -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=300 \
    -artifact_prefix="$build/found/$name/" -print_final_stats=1 > "$build/$name.log" 2>&1 || failed="$failed $name"
  echo "$name:"
  grep -E '#[0-9]+.DONE|stat::|ERROR|SUMMARY|runtime error' "$build/$name.log" || true
done
if [ -n "$failed" ]; then
  echo "FAILED:$failed ($build/<name>.log has what was printed)"
  exit 1
fi
