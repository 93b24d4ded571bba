// SPDX-License-Identifier: Apache-2.0
/**
 * What other processes bring along: the libraries and servers of the tensor bus, and the Python that trainers and engines run
 * in. Found by looking at files; nothing is started.
 */
import { createRequire } from "node:module"
import * as path from "node:path"
import { type Fact, fact } from "./Fact.ts"
import type { SystemFiles } from "./SystemFiles.ts"

const libraryFolders = [
  "/usr/lib/x86_64-linux-gnu",
  "/usr/lib/aarch64-linux-gnu",
  "/usr/local/lib",
  "/usr/lib64",
  "/usr/lib"
]

const inFolders = (files: SystemFiles, folders: ReadonlyArray<string>, name: string): string | undefined =>
  folders.map((folder) => path.join(folder, name)).find((file) => files.realPath(file) !== undefined)

/** Where the package of the bus is. */
const busFolder = (): string => path.dirname(createRequire(import.meta.url).resolve("@tensorferry/bus/package.json"))

/** Whether the native half of agents is there: they start with it, and so do push, pull and load of Python. */
const agents = (files: SystemFiles, folder: string): Fact => {
  const places = [
    path.join(folder, "build/Release"),
    path.join(folder, "prebuilds", `${process.platform}-${process.arch}`)
  ]
  const isBuilt = places.some((place) => files.list(place).some((name) => name.endsWith(".node")))
  return fact(
    "agents",
    isBuilt ? "can start: the bus's addon is there" : "cannot start: the bus's addon is not built",
    { folder, isBuilt },
    isBuilt
      ? undefined
      : `Run \`npm run build:native\` in ${folder} (it needs CMake and a C++20 compiler). Without: no agents, so no push, pull or load in Python.`
  )
}

const queueLibrary = (files: SystemFiles): Fact => {
  const found = inFolders(files, libraryFolders, "liblmdb.so.0")
  return fact(
    "LMDB",
    found ?? "not found: agents of the bus have no queues",
    { found: found ?? null },
    found === undefined ? "Install LMDB 0.9 for the tensor bus (Debian: apt-get install liblmdb0)." : undefined
  )
}

const semaphores = (files: SystemFiles): Fact => {
  const access = files.access("/dev/shm")
  return fact(
    "semaphores",
    access === "read-write" ? "named ones can be made" : `cannot be made: /dev/shm is ${access}`,
    { access },
    access === "read-write" ? undefined : "Mount /dev/shm writable: clients of the bus wait by named semaphores."
  )
}

const store = (files: SystemFiles, folders: ReadonlyArray<string>): Fact => {
  const found = inFolders(files, folders, "etcd")
  return fact("etcd", found ?? "not found: an agent can serve the store itself (tensorferry agent --serve)", {
    found: found ?? null
  })
}

/** Packages of a Python beside its binary, as their metadata folders name them. */
const packageFolders = (files: SystemFiles, python: string): ReadonlyArray<string> => {
  const real = files.realPath(python)
  const prefixes = new Set(
    [python, ...(real === undefined ? [] : [real])].map((file) => path.dirname(path.dirname(file)))
  )
  return [...prefixes].flatMap((prefix) => [
    ...files
      .list(path.join(prefix, "lib"))
      .filter((name) => /^python3(\.\d+)?$/.test(name))
      .flatMap((name) => ["site-packages", "dist-packages"].map((kind) => path.join(prefix, "lib", name, kind)))
  ])
}

const versionIn = (files: SystemFiles, folders: ReadonlyArray<string>, name: string): string | undefined => {
  for (const folder of folders) {
    for (const entry of files.list(folder)) {
      const version = new RegExp(`^${name}-(\\d[^-]*)\\.dist-info$`).exec(entry)?.[1]
      if (version !== undefined) return version
    }
  }
  return undefined
}

const python = (files: SystemFiles, folders: ReadonlyArray<string>): Fact => {
  const found = inFolders(files, folders, "python3")
  if (found === undefined)
    return fact("Python", "not found: only trainers and engines in Python miss it", { found: null })
  const places = packageFolders(files, found)
  const [torch, own] = ["torch", "tensorferry"].map((name) => versionIn(files, places, name))
  const parts = [
    found,
    torch === undefined ? "no torch beside it: its programs push and pull no weights" : `torch ${torch}`,
    ...(own === undefined ? [] : [`tensorferry ${own}`])
  ]
  return fact("Python", parts.join(", "), { found, torch: torch ?? null, tensorferry: own ?? null })
}

/** `commands` are the folders of PATH, in order; `bus` is the folder of the package of the bus. */
export const companionFacts = (
  files: SystemFiles,
  commands: ReadonlyArray<string> = (process.env.PATH ?? "").split(path.delimiter).filter((folder) => folder !== ""),
  bus = busFolder()
): ReadonlyArray<Fact> => [
  agents(files, bus),
  queueLibrary(files),
  semaphores(files),
  store(files, commands),
  python(files, commands)
]
