# What building and running needs, from Debian's or Ubuntu's packages. Sourced by examples/run.sh and tests/run.sh in
# the top folder; does nothing when everything is there.

build_packages="cmake g++ ninja-build libprotobuf-dev protobuf-compiler libgoogle-glog-dev libgflags-dev \
libdnnl-dev libucx-dev libtbb-dev zlib1g-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev"
# Good to have: the build goes on without them. ccache makes the second build fast, bench sets libcaf-dev's messages
# beside ours, libpmix-dev lets mpirun and srun --mpi=pmix start programs, libjpeg-dev and libpng-dev decode pictures,
# libpcre2-dev, libutf8proc-dev and libsentencepiece-dev read tokenizers,
# python3-yaml and python3-jsonschema check Kubernetes' manifest, iproute2 shows sockets and devices, nftables tries the
# rules of docs/many_processes.md, doxygen makes the reference of the headers, the others are what the examples learn from.
optional_packages="ccache jargon-text dataset-fashion-mnist libcaf-dev libpmix-dev libjpeg-dev libpng-dev \
libpcre2-dev libutf8proc-dev libsentencepiece-dev \
python3-yaml python3-jsonschema iproute2 nftables doxygen"
# Small installations leave out /usr/share/doc, which is where this text lives.
text_file=/usr/share/doc/jargon-text/jargon.txt.gz

missing_packages() {
  for package in "$@"; do
    case "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" in
      *" installed") ;;
      *) printf '%s ' "$package" ;;
    esac
  done
}

apt_get() {
  if [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get "$@"
  else
    sudo DEBIAN_FRONTEND=noninteractive apt-get "$@"
  fi
}

install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is neither Debian nor Ubuntu: what follows needs the counterparts of: $build_packages" >&2
    return 0
  fi
  # shellcheck disable=SC2086  # lists of words on purpose
  needed=$(missing_packages $build_packages)
  # shellcheck disable=SC2086
  wanted=$(missing_packages $optional_packages)
  case $wanted in
    *jargon-text*) ;;
    *) [ -e "$text_file" ] || wanted="$wanted jargon-text" ;;
  esac
  [ -n "$needed$wanted" ] || return 0
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    if [ -n "$needed" ]; then
      echo "error: these packages are missing, and there is neither root nor sudo to install them: $needed" >&2
      exit 1
    fi
    echo "Going on without these packages, as there is neither root nor sudo to install them: $wanted" >&2
    return 0
  fi
  echo "Installing: $needed$wanted"
  apt_get update -q || echo "apt-get update failed; trying with the package lists at hand" >&2
  if [ -n "$needed" ]; then
    # shellcheck disable=SC2086
    if ! apt_get install -q -y --no-install-recommends $needed; then
      echo "error: apt-get could not install: $needed" >&2
      exit 1
    fi
  fi
  for package in $wanted; do
    apt_get install -q -y --no-install-recommends --reinstall \
      -o "DPkg::Options::=--path-include=${text_file%/*}/*" "$package" ||
      echo "Going on without package $package, which apt-get could not install" >&2
  done
}
