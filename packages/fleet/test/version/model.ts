// SPDX-License-Identifier: Apache-2.0
/** Random lives of a fleet, as commands; what must hold in each, and in the calm after it. */
import { assert } from "@effect/vitest"
import * as fc from "fast-check"
import type { CommitPolicy } from "../../src/version/FleetLog.ts"
import { canServe } from "../../src/version/MemberState.ts"
import { World } from "./world.ts"

/** Who is alive, as far as commands need to know. */
interface Model {
  replicas: number
  controllers: number
}

type Command = fc.Command<Model, World>

const command = (
  text: string,
  run: (world: World, model: Model) => void,
  check: (model: Model) => boolean = () => true
): Command => ({
  check,
  run: (model, world) => {
    run(world, model)
    assert.deepStrictEqual(world.faults, [])
  },
  toString: () => text
})

const alive = <A extends { readonly isAlive: boolean }>(all: ReadonlyArray<A>): ReadonlyArray<A> =>
  all.filter(({ isAlive }) => isAlive)
const everybody = (world: World) => [...alive(world.members), ...alive(world.controllers)]
const pick = <A>(all: ReadonlyArray<A>, at: number): A => all[at % all.length]!

const at = fc.nat({ max: 1000 })
const seconds = fc.constantFrom(0.05, 0.2, 0.7, 1.1, 1.5, 3)

const commands = (policies: ReadonlyArray<CommitPolicy>): Array<fc.Arbitrary<Command>> => [
  fc.constantFrom(0.03, 0.1, 0.3, 1, 4).map((time) => command(`wait ${time}`, (world) => world.advance(time))),
  fc.constantFrom(0.3, 1, 4).map((time) => command(`wait ${time}`, (world) => world.advance(time))),
  fc.constantFrom(...policies).map((policy) =>
    command(`publish ${policy._tag}`, (world) => {
      world.publish(policy)
      world.advance(0.4)
    })
  ),
  at.map((which) =>
    command(
      `kill replica ${which}`,
      (world, model) => {
        model.replicas -= 1
        world.kill(
          pick(
            alive(world.members).filter(({ state }) => state.self.role === "replica"),
            which
          )
        )
      },
      ({ replicas }) => replicas > 0
    )
  ),
  fc.constant(
    command(
      "add replica",
      (world, model) => {
        model.replicas += 1
        world.addMember("replica")
      },
      ({ replicas }) => replicas < 6
    )
  ),
  fc.constant(
    command("replace source", (world) => {
      for (const member of alive(world.members)) if (member.state.self.role === "source") world.kill(member)
      world.advance(0.5)
      world.addMember("source")
    })
  ),
  at.map((which) =>
    command(`replace controller ${which}`, (world) => {
      world.kill(pick(alive(world.controllers), which))
      world.addController()
    })
  ),
  fc.constant(
    command(
      "another controller",
      (world, model) => {
        model.controllers += 1
        world.addController()
      },
      ({ controllers }) => controllers < 3
    )
  ),
  fc
    .tuple(at, seconds)
    .map(([which, time]) =>
      command(`stop ${which} for ${time}`, (world) => world.stop(pick(everybody(world), which), time))
    ),
  fc
    .tuple(at, seconds)
    .map(([which, time]) =>
      command(`part ${which} for ${time}`, (world) => world.part(pick(everybody(world), which), time))
    ),
  fc.tuple(at, at).map(([which, other]) =>
    command(`end a connection of ${which} to ${other}`, (world) => {
      world.miss(pick(alive(world.members), which), pick(world.members, other).id)
      world.advance(0.05)
    })
  ),
  fc
    .tuple(at, seconds)
    .map(([which, time]) =>
      command(`jump ${which} by ${time}`, (world) => world.jump(pick(everybody(world), which), time))
    ),
  fc
    .tuple(fc.boolean(), seconds)
    .map(([isEmptied, time]) =>
      command(`store ${isEmptied ? "emptied" : "away"} for ${time}`, (world) => world.restartStore(isEmptied, time))
    )
]

/** In the calm after all faults every wait has ended, and all replicas serve the version in use. */
const settles = (world: World): void => {
  world.heal()
  world.advance(30)
  assert.deepStrictEqual(world.faults, [])
  const { fleet } = world
  assert.isDefined(fleet)
  const { open, current, history, members } = fleet!
  assert.isNull(open)
  for (const end of history) {
    if (end.outcome === "committed") continue
    assert.isNotEmpty(end.culprits, end.reason)
    assert.isNotEmpty(end.reason)
  }
  for (const member of alive(world.members)) {
    assert.include(
      members.map(({ id }) => id),
      member.id
    )
    if (member.state.self.role === "source") continue
    assert.strictEqual(canServe(member.state, world.clockOf(member)), current !== null, member.id)
    assert.deepStrictEqual(member.state.live, current)
  }
  assert.lengthOf(members, alive(world.members).length)
}

/** Runs so many random lives; a failure is shrunk to the commands that it needs. */
export const checkFleets = (policies: ReadonlyArray<CommitPolicy>, runs: number, seed: number): void => {
  const onlyAll = policies.every(({ _tag }) => _tag === "All")
  fc.assert(
    fc.property(
      fc.commands(commands(policies), { maxCommands: 30, size: "max" }),
      fc.nat({ max: 2 ** 30 }),
      (all, start) => {
        const world = new World(start, onlyAll)
        world.addController()
        world.addMember("source")
        for (let replica = 0; replica < 3; replica++) world.addMember("replica")
        world.advance(3)
        world.publish({ _tag: "All" })
        world.advance(3)
        fc.modelRun(() => ({ model: { replicas: 3, controllers: 1 }, real: world }), all)
        settles(world)
      }
    ),
    { numRuns: runs, seed }
  )
}
