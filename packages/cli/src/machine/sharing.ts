// SPDX-License-Identifier: Apache-2.0
/**
 * Whether processes of this machine can get at each other's memory: what the system states about it. What is really tried
 * is in `processProbe.ts`.
 */
import { formatBytes } from "../text/Table.ts"
import { type Fact, fact } from "./Fact.ts"
import { parseFields, type SystemFiles } from "./SystemFiles.ts"

const tracing = (scope: string | undefined): Fact => {
  const data = { scope: scope === undefined ? null : Number(scope) }
  if (scope === undefined || scope === "0") {
    const why = scope === undefined ? "the kernel has no ptrace_scope" : "ptrace_scope is 0"
    return fact("tracing", `not restricted between processes of one user (${why})`, data)
  }
  return fact(
    "tracing",
    `restricted by ptrace_scope ${scope}: ranks may map each other's tensors, but not read other memory`,
    data,
    "Tensors that were not allocated to be shared go over TCP; sysctl kernel.yama.ptrace_scope=0 allows reading them."
  )
}

/** The runtime that this process is in a container of, as far as its files show. */
export const containerOf = (files: SystemFiles): string | undefined => {
  if (files.access("/.dockerenv") !== "absent") return "docker"
  if (files.access("/run/.containerenv") !== "absent") return "podman"
  if (files.access("/var/run/secrets/kubernetes.io") !== "absent") return "kubernetes"
  return /\b(docker|kubepods|libpod|lxc|containerd)\b/.exec(files.read("/proc/self/cgroup") ?? "")?.[1]
}

/** The whole range of user numbers, as the first user namespace maps it. */
const allUsers = /^0\s+0\s+4294967295$/

const seccompModes: Readonly<Record<string, string>> = { "0": "off", "1": "strict", "2": "filtered" }

const surroundings = (files: SystemFiles): Fact => {
  const status = parseFields(files.read("/proc/self/status") ?? "")
  const users = files.read("/proc/self/uid_map") ?? ""
  const container = containerOf(files)
  const hasOwnUsers = users !== "" && !allUsers.test(users)
  const seccomp = seccompModes[status.get("Seccomp") ?? ""] ?? "unknown"
  const noNewPrivileges = status.get("NoNewPrivs") === "1"
  const parts = [
    container === undefined ? "no container seen" : `in a container (${container})`,
    hasOwnUsers ? "a user namespace of its own" : "the machine's users",
    ...(noNewPrivileges ? ["no_new_privs"] : []),
    `system calls ${seccomp === "off" ? "not filtered" : seccomp}`
  ]
  return fact("surroundings", parts.join(", "), {
    container: container ?? null,
    userNamespace: hasOwnUsers,
    noNewPrivileges,
    seccomp
  })
}

export const sharingFacts = (files: SystemFiles): ReadonlyArray<Fact> => {
  const shared = files.space("/dev/shm")
  return [
    fact(
      "/dev/shm",
      shared === undefined
        ? "cannot be read (not used: memory files have no name)"
        : `${formatBytes(shared.available)} free of ${formatBytes(shared.total)} (not used: memory files have no name)`,
      { ...shared }
    ),
    surroundings(files),
    tracing(files.read("/proc/sys/kernel/yama/ptrace_scope"))
  ]
}
