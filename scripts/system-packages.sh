#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that some tests run over: OpenCL on the processor and the Level Zero loader, which opens a
# simulated driver (Intel devices); AMD's runtime, for its symbols; LMDB, its Python binding and etcd (tensor bus); network
# namespaces and their shaping (backends between hosts). With --full also a browser, for the page of a run, iperf3, which
# the bench of tcp is compared with, UCX with its headers and its bench, and two shells, for their completions. Does nothing where they are present, and never
# fails: without them, those tests are skipped and say which package is missing. Only root installs, only where apt exists.
set -uo pipefail

packages=(pocl-opencl-icd ocl-icd-libopencl1 libze1 libamdhip64-5 liblmdb0 python3-lmdb etcd-server iproute2)
if [ "${1:-}" = --full ]; then packages+=(chromium iperf3 libucx0 libucx-dev ucx-utils zsh fish); fi
deadline=300

is_installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done

if [ "${#missing[@]}" -eq 0 ]; then
  echo "system packages: ${packages[*]} are installed"
elif ! command -v apt-get >/dev/null; then
  echo "system packages: ${missing[*]} are missing and there is no apt-get; tests that need them are skipped"
elif [ "$(id -u)" -ne 0 ]; then
  echo "system packages: ${missing[*]} are missing; install them as root: apt-get install --no-install-recommends ${missing[*]}"
else
  export DEBIAN_FRONTEND=noninteractive
  install=(timeout "$deadline" apt-get -qq -o DPkg::Lock::Timeout=60 install --yes --no-install-recommends "${missing[@]}")
  log=$(mktemp)
  # The lists of a machine image may be there already; they are fetched only where they do not suffice.
  if "${install[@]}" >"$log" 2>&1 ||
    { timeout "$deadline" apt-get -qq update >"$log" 2>&1 && "${install[@]}" >"$log" 2>&1; }; then
    echo "system packages: installed ${missing[*]}"
  else
    echo "system packages: ${missing[*]} could not be installed; tests that need them are skipped. The end of what apt-get said:"
    tail -n 5 "$log"
  fi
  rm -f "$log"
fi
exit 0
