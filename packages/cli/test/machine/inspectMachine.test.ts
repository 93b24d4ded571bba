// SPDX-License-Identifier: Apache-2.0
/**
 * What `doctor` makes of the system's files, on contents recorded from machines of several kinds, below a root of the
 * test's own.
 */
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs"
import { dirname, join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { companionFacts } from "../../src/machine/companions.ts"
import { addressOfLocation, deviceFacts, findDevices, parseNvidiaVersion } from "../../src/machine/devices.ts"
import type { Fact } from "../../src/machine/Fact.ts"
import { findLibraries, libraryVersion, searchedFolders } from "../../src/machine/libraries.ts"
import { groupLimit, memoryFacts, memoryGroup } from "../../src/machine/memoryLimits.ts"
import { networkFacts } from "../../src/machine/network.ts"
import { limitFacts, parseLimits } from "../../src/machine/processLimits.ts"
import { inspectProcessAccess, processProbeFacts } from "../../src/machine/processProbe.ts"
import { countList, type SystemFiles, systemFiles } from "../../src/machine/SystemFiles.ts"
import { containerOf, sharingFacts } from "../../src/machine/sharing.ts"
import { numaNodes, topologyFacts } from "../../src/machine/topology.ts"
import { scratch } from "../support/command.ts"

/** A root folder with these files, until the test ends. */
const rootWith = (contents: Readonly<Record<string, string>>) => {
  const folder = scratch()
  for (const [file, text] of Object.entries(contents)) {
    const at = join(folder.path, file)
    mkdirSync(dirname(at), { recursive: true })
    writeFileSync(at, text)
  }
  return { files: systemFiles(folder.path), path: folder.path, [Symbol.dispose]: () => folder[Symbol.dispose]() }
}

const named = (facts: ReadonlyArray<Fact>, name: string): Fact => {
  const found = facts.find((fact) => fact.name === name)
  assert.isDefined(found, name)
  return found!
}

const limits = (
  openFiles: string,
  locked: string,
  space: string
) => `Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max processes             96364                96364                processes 
Max open files            ${openFiles.padEnd(20)} 1048576              files     
Max locked memory         ${locked.padEnd(20)} unlimited            bytes     
Max address space         ${space.padEnd(20)} unlimited            bytes     
Max realtime timeout      unlimited            unlimited            us        
`

describe("limits of the process", () => {
  it("are read by name, with or without a bound", () => {
    const parsed = parseLimits(limits("1024", "8388608", "unlimited"))
    assert.deepStrictEqual(parsed.get("Max open files"), { soft: 1024, hard: 1_048_576 })
    assert.deepStrictEqual(parsed.get("Max address space"), {
      soft: Number.POSITIVE_INFINITY,
      hard: Number.POSITIVE_INFINITY
    })
    assert.strictEqual(parsed.size, 6)
    assert.strictEqual(parseLimits("").size, 0)
  })

  it("have a remedy where they are in the way, and only there", () => {
    using tight = rootWith({ "proc/self/limits": limits("1024", "8388608", "4294967296") })
    const facts = limitFacts(tight.files, true)
    assert.include(named(facts, "open files").remedy, "ulimit -n 1048576")
    assert.include(named(facts, "address space").remedy, "ulimit -v")
    assert.include(named(facts, "locked memory").remedy, "memlock")
    assert.deepStrictEqual(named(facts, "address space").data, { soft: 2 ** 32, hard: null })
    assert.isUndefined(named(limitFacts(tight.files, false), "locked memory").remedy)
    using wide = rootWith({ "proc/self/limits": limits("4096", "unlimited", "unlimited") })
    for (const fact of limitFacts(wide.files, true)) assert.isUndefined(fact.remedy, fact.name)
    using none = rootWith({})
    for (const fact of limitFacts(none.files, true)) assert.include(fact.summary, "unknown")
  })
})

describe("memory", () => {
  const first = `9:name=systemd:/
4:memory:/job/rank
3:cpuset:/
0::/
`
  const firstMounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
  const secondMounts = "32 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"

  it("the group is the process's own, in both versions, and as far as the mount shows it", () => {
    assert.deepStrictEqual(memoryGroup(first, firstMounts), {
      version: 1,
      mount: "/sys/fs/cgroup/memory",
      folder: "/sys/fs/cgroup/memory/job/rank"
    })
    assert.deepStrictEqual(memoryGroup("0::/user.slice/job:1", secondMounts), {
      version: 2,
      mount: "/sys/fs/cgroup",
      folder: "/sys/fs/cgroup/user.slice/job:1"
    })
    const part = "32 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    assert.strictEqual(memoryGroup("0::/docker/abc/rank", part)?.folder, "/sys/fs/cgroup/rank")
    assert.strictEqual(memoryGroup("0::/docker/abcdef", part)?.folder, "/sys/fs/cgroup/")
    assert.strictEqual(memoryGroup("0::/../other", secondMounts)?.folder, "/sys/fs/cgroup")
    assert.isUndefined(memoryGroup("0::/", "31 23 0:28 / / rw - ext4 /dev/sda rw"))
    assert.isUndefined(memoryGroup("", ""))
  })

  it("the tightest limit counts, the group's own or an ancestor's", () => {
    using root = rootWith({
      "sys/fs/cgroup/a/memory.max": "8589934592\n",
      "sys/fs/cgroup/a/memory.current": "1073741824\n",
      "sys/fs/cgroup/a/b/memory.max": "max\n",
      "sys/fs/cgroup/a/b/c/memory.max": "17179869184\n"
    })
    const group = { version: 2, mount: "/sys/fs/cgroup", folder: "/sys/fs/cgroup/a/b/c" } as const
    assert.deepStrictEqual(groupLimit(root.files, group), {
      limit: 8 * 2 ** 30,
      used: 2 ** 30,
      file: "/sys/fs/cgroup/a/memory.max"
    })
    using unlimited = rootWith({ "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n" })
    const old = { version: 1, mount: "/sys/fs/cgroup/memory", folder: "/sys/fs/cgroup/memory/job" } as const
    assert.isUndefined(groupLimit(unlimited.files, old))
  })

  it("is shown in one line each", () => {
    using root = rootWith({
      "proc/meminfo": "MemTotal:       24683656 kB\nMemFree:        22794464 kB\nMemAvailable:   24245316 kB\n",
      "proc/self/cgroup": first,
      "proc/self/mountinfo": firstMounts,
      "sys/fs/cgroup/memory/job/rank/memory.limit_in_bytes": "536870912\n",
      "sys/fs/cgroup/memory/job/rank/memory.usage_in_bytes": "268435456\n"
    })
    const facts = memoryFacts(root.files)
    assert.strictEqual(named(facts, "memory").summary, "23.1 GiB available of 23.5 GiB")
    assert.strictEqual(named(facts, "memory").data.total, 24_683_656 * 1024)
    assert.match(named(facts, "memory limit").summary, /^512 MiB, 256 MiB used \(.*limit_in_bytes\)$/)
    using empty = rootWith({})
    assert.deepStrictEqual(
      memoryFacts(empty.files).map(({ data }) => data),
      [{ total: undefined, available: undefined }, { limit: null }]
    )
  })
})

describe("processors and memory nodes", () => {
  const program = { version: "v24.0.0", file: "/node", platform: "linux", architecture: "x64", kernel: "6.1" }

  it("lists are counted", () => {
    for (const [list, count] of [
      ["", 0],
      ["0", 1],
      ["0-3", 4],
      ["0-1,8,16-31", 19]
    ] as const) {
      assert.strictEqual(countList(list), count, list)
    }
  })

  it("nodes come in order, with what the process may use", () => {
    using root = rootWith({
      "proc/self/status": "Name:\tnode\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n",
      "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some Processor\n",
      "sys/devices/system/cpu/online": "0-31\n",
      "sys/devices/system/node/node0/cpulist": "0-15\n",
      "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:        4194304 kB\nNode 0 MemFree: 1 kB\n",
      "sys/devices/system/node/node10/cpulist": "\n",
      "sys/devices/system/node/node1/cpulist": "16-31\n",
      "sys/devices/system/node/online": "0-1,10\n"
    })
    assert.deepStrictEqual(numaNodes(root.files), [
      { node: 0, processors: "0-15", memory: 4 * 2 ** 30 },
      { node: 1, processors: "16-31", memory: undefined },
      { node: 10, processors: "", memory: undefined }
    ])
    const facts = topologyFacts(root.files, program)
    assert.strictEqual(named(facts, "processors").summary, "8 of 32, Some Processor")
    assert.strictEqual(
      named(facts, "memory nodes").summary,
      "0 (processors 0-15, 4.0 GiB), 1 (processors 16-31), 10 (processors none), memory only from node 0"
    )
    using empty = rootWith({})
    assert.include(named(topologyFacts(empty.files, program), "memory nodes").summary, "unknown")
  })
})

describe("what processes may do to each other", () => {
  it("ptrace_scope, containers, users, filters", () => {
    using bare = rootWith({
      "proc/self/status": "NoNewPrivs:\t0\nSeccomp:\t0\n",
      "proc/self/uid_map": "         0          0 4294967295\n"
    })
    const free = sharingFacts(bare.files)
    assert.isUndefined(named(free, "tracing").remedy)
    assert.strictEqual(
      named(free, "surroundings").summary,
      "no container seen, the machine's users, system calls not filtered"
    )
    using boxed = rootWith({
      "proc/sys/kernel/yama/ptrace_scope": "1\n",
      "proc/self/status": "NoNewPrivs:\t1\nSeccomp:\t2\n",
      "proc/self/uid_map": "0 100000 65536\n",
      "run/.containerenv": ""
    })
    const held = sharingFacts(boxed.files)
    assert.include(named(held, "tracing").remedy, "ptrace_scope=0")
    assert.deepStrictEqual(named(held, "tracing").data, { scope: 1 })
    assert.deepStrictEqual(named(held, "surroundings").data, {
      container: "podman",
      userNamespace: true,
      noNewPrivileges: true,
      seccomp: "filtered"
    })
    using pod = rootWith({ "proc/self/cgroup": "0::/kubepods/burstable/pod1\n" })
    assert.strictEqual(containerOf(pod.files), "kubepods")
  })

  it.live("a second process maps this one's memory file, or the fact says why not", () =>
    Effect.gen(function* () {
      const facts = yield* inspectProcessAccess
      assert.isTrue(named(facts, "memory files").data.works)
      assert.isTrue(named(facts, "shared map").data.works, named(facts, "shared map").summary)
      const reads = named(facts, "memory reads")
      assert.strictEqual(reads.remedy === undefined, reads.data.works)
    })
  )

  it("what does not work has a remedy", () => {
    const facts = processProbeFacts({ mapped: "", read: "the system refuses it (EACCES)" })
    assert.isUndefined(named(facts, "shared map").remedy)
    assert.include(named(facts, "memory reads").summary, "EACCES")
    assert.include(named(facts, "memory reads").remedy, "ptrace")
  })
})

describe("devices", () => {
  const nvidia = {
    "proc/driver/nvidia/version":
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)  \nGCC version:  gcc version 15.3.0 (GCC) \n",
    "proc/driver/nvidia/gpus/0000:00:06.0/information":
      "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\nGPU UUID: \t GPU-1\nVideo BIOS: \t 96.00.da.00.0c\nBus Type: \t PCIe\nBus Location: \t 0000:00:06.0\nDevice Minor: \t 3\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t No\n",
    "dev/nvidia3": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": ""
  }
  const card = (number: number, vendor: string, device: string, driver: string, address: string) => ({
    [`sys/class/drm/card${number}/device/vendor`]: `${vendor}\n`,
    [`sys/class/drm/card${number}/device/device`]: `${device}\n`,
    [`sys/class/drm/card${number}/device/uevent`]: `DRIVER=${driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME=${address}\n`,
    [`sys/class/drm/renderD${128 + number}/device/uevent`]: `DRIVER=${driver}\nPCI_SLOT_NAME=${address}\n`,
    [`sys/class/drm/card${number}-DP-1/status`]: "connected\n"
  })
  const compute = (node: number, simds: number, location: number, minor: number) => ({
    [`sys/class/kfd/kfd/topology/nodes/${node}/properties`]: `cpu_cores_count ${simds === 0 ? 64 : 0}\nsimd_count ${simds}\nvendor_id 4098\ndevice_id 29704\nlocation_id ${location}\ndomain 0\ndrm_render_minor ${minor}\ngfx_target_version 90010\n`
  })

  it("versions of the driver, and addresses", () => {
    for (const [text, version] of [
      ["NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", "535.129.03"],
      ["NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@)", "580.159.04"],
      ["NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54", "550.54"],
      ["", undefined]
    ] as const) {
      assert.strictEqual(parseNvidiaVersion(text), version)
    }
    assert.strictEqual(addressOfLocation(0, 0xc1_00), "0000:c1:00.0")
    assert.strictEqual(addressOfLocation(1, 0x03_0a), "0001:03:01.2")
  })

  it("of three vendors and a fourth, each once, in order of the bus", () => {
    using root = rootWith({
      ...nvidia,
      ...card(0, "0x1a03", "0x2000", "ast", "0000:02:00.0"),
      ...card(1, "0x10de", "0x2330", "nvidia", "0000:00:06.0"),
      ...card(2, "0x1002", "0x7408", "amdgpu", "0000:C1:00.0"),
      ...card(3, "0x8086", "0x0bda", "i915", "0000:3a:00.0"),
      ...compute(0, 0, 0, 0),
      ...compute(1, 440, 0xc1_00, 130),
      "dev/kfd": "",
      "dev/dri/renderD130": "",
      "dev/dri/renderD131": ""
    })
    const devices = findDevices(root.files)
    assert.deepStrictEqual(
      devices.map(({ address, vendor, family, model, driver }) => [address, vendor, family, model, driver]),
      [
        ["0000:00:06.0", "NVIDIA", "cuda", "NVIDIA H100 80GB HBM3", "driver 580.159.04"],
        ["0000:02:00.0", "vendor 0x1a03", undefined, "device 0x2000", "driver ast"],
        ["0000:3a:00.0", "Intel", "xpu", "device 0x0bda", "driver i915"],
        ["0000:c1:00.0", "AMD", "rocm", "gfx90a", "driver amdgpu"]
      ]
    )
    assert.deepStrictEqual(
      devices.map(({ files }) => files.map(({ file }) => file)),
      [
        ["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"],
        ["/dev/dri/renderD128"],
        ["/dev/dri/renderD131"],
        ["/dev/kfd", "/dev/dri/renderD130"]
      ]
    )
    for (const fact of deviceFacts(devices)) assert.isUndefined(fact.remedy, fact.name)
  })

  it("device files that are not there or may not be opened have a remedy that names them", () => {
    const { "dev/nvidia-uvm": _, ...rest } = nvidia
    using root = rootWith(rest)
    const [absent] = deviceFacts(findDevices(root.files))
    assert.include(absent!.remedy, "/dev/nvidia-uvm is missing")
    assert.include(absent!.summary, "2 of 3 device files usable")
    const locked: SystemFiles = { ...root.files, access: () => "denied" }
    const [denied] = deviceFacts(findDevices(locked))
    assert.match(denied!.remedy!, /may not open \/dev\/nvidia3, \/dev\/nvidiactl, \/dev\/nvidia-uvm/)
  })

  it("none: an empty list", () => {
    using root = rootWith({})
    assert.deepStrictEqual(findDevices(root.files), [])
  })
})

describe("libraries", () => {
  it("are listed once, with the version of the file that they lead to", () => {
    using root = rootWith({ "usr/lib/libnccl.so.2.28.3": "", "lib64/libze_loader.so.1": "" })
    symlinkSync("libnccl.so.2.28.3", join(root.path, "usr/lib/libnccl.so.2"))
    const found = findLibraries(root.files, [
      {
        name: "cuda",
        tried: ["/lib64/libcuda.so.1", "/usr/lib/libcuda.so.1", "/lib64/libnccl.so.2", "/usr/lib/libnccl.so.2"]
      },
      { name: "nvshmem", tried: ["/lib64/libcuda.so.1"] },
      { name: "xpu", tried: ["/lib64/libze_loader.so.1"] },
      { name: "torch-copy", tried: ["/package/build", "a memory file of one page"] }
    ])
    assert.deepStrictEqual(
      found.map(({ library, found, version, backends }) => [library, found, version, backends.join()]),
      [
        ["libcuda.so.1", undefined, undefined, "cuda,nvshmem"],
        ["libnccl.so.2", "/usr/lib/libnccl.so.2", "2.28.3", "cuda"],
        ["libze_loader.so.1", "/lib64/libze_loader.so.1", "1", "xpu"]
      ]
    )
    assert.deepStrictEqual(searchedFolders(found), ["/lib64", "/usr/lib"])
    assert.isUndefined(libraryVersion("/lib/libm.so"))
  })
})

describe("the network", () => {
  it("has its interfaces with state, speed and packets, and a remedy where none is up", () => {
    using machine = rootWith({
      "sys/class/net/lo/operstate": "unknown",
      "sys/class/net/lo/mtu": "65536",
      "sys/class/net/eth0/operstate": "up",
      "sys/class/net/eth0/mtu": "9000",
      "sys/class/net/eth0/speed": "100000",
      "sys/class/net/eth1/operstate": "down",
      "sys/class/net/eth1/mtu": "1500",
      "sys/class/net/eth1/speed": "-1",
      "sys/class/net/bonding_masters": ""
    })
    const facts = networkFacts(machine.files)
    assert.deepStrictEqual(
      facts.map(({ name, summary }) => [name, summary]),
      [
        ["eth0", "up, 100 Gbit/s, packets of 9000 bytes"],
        ["eth1", "down, speed not stated, packets of 1500 bytes"],
        ["lo", "this machine alone, packets of 65536 bytes"]
      ]
    )
    assert.deepStrictEqual(named(facts, "eth0").data, { state: "up", mtu: 9000, bitsPerSecond: 1e11 })
    for (const { remedy } of facts) assert.isUndefined(remedy)
    using alone = rootWith({ "sys/class/net/lo/operstate": "unknown", "sys/class/net/eth1/operstate": "down" })
    assert.include(named(networkFacts(alone.files), "eth1").remedy, "ip link set eth1 up")
    assert.isUndefined(named(networkFacts(alone.files), "lo").remedy)
    using none = rootWith({})
    assert.deepStrictEqual(networkFacts(none.files), [])
  })
})

describe("what other processes bring", () => {
  it("is found by files: the bus's library and store, Python and its torch", () => {
    using machine = rootWith({
      "usr/lib/x86_64-linux-gnu/liblmdb.so.0": "",
      "dev/shm/.keep": "",
      "opt/env/bin/python3": "",
      "opt/env/lib/python3.11/site-packages/torch-2.13.0+cpu.dist-info/METADATA": "",
      "opt/env/lib/python3.11/site-packages/torchvision-0.28.0.dist-info/METADATA": "",
      "usr/bin/etcd": "",
      [`opt/bus/prebuilds/${process.platform}-${process.arch}/bus.napi.glibc.node`]: ""
    })
    const facts = companionFacts(machine.files, ["/opt/env/bin", "/usr/bin"], "/opt/bus")
    assert.isUndefined(named(facts, "agents").remedy)
    assert.include(named(facts, "LMDB").summary, "liblmdb.so.0")
    assert.isUndefined(named(facts, "semaphores").remedy)
    assert.strictEqual(named(facts, "etcd").data.found, "/usr/bin/etcd")
    assert.deepStrictEqual(named(facts, "Python").data, {
      found: "/opt/env/bin/python3",
      torch: "2.13.0+cpu",
      tensorferry: null
    })
  })

  it("is named with what its lack costs", () => {
    using none = rootWith({})
    const facts = companionFacts(none.files, [], "/opt/bus")
    assert.include(named(facts, "agents").summary, "cannot start")
    assert.match(named(facts, "agents").remedy!, /build:native` in \/opt\/bus .* no push, pull or load in Python/)
    assert.include(named(facts, "LMDB").remedy, "liblmdb0")
    assert.include(named(facts, "semaphores").remedy, "/dev/shm")
    assert.include(named(facts, "etcd").summary, "--serve")
    assert.include(named(facts, "Python").summary, "not found")
  })
})
