// SPDX-License-Identifier: Apache-2.0
/**
 * Programs of batches that come again: refits run the same copies over and over, and to compile and upload them costs more
 * than to run them.
 *
 * Invariants: a program is used again only while its list holds the very same moves and none of their storages was freed;
 * moves and tensors are values that nobody changes. At most so many programs are kept, the latest used.
 */
import type { QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import type { GpuProgram } from "./GpuProgram.ts"

const mostPrograms = 32

interface Known {
  readonly moves: ReadonlyArray<Move>
  readonly program: GpuProgram
}

const areSame = (known: ReadonlyArray<Move>, moves: ReadonlyArray<Move>): boolean => {
  if (known.length !== moves.length) return false
  for (let i = 0; i < known.length; i++) {
    const move = known[i]!
    if (move !== moves[i] || move.dst.storage.isFreed() || move.src.storage.isFreed()) return false
  }
  return true
}

/** What of a conversion its tensors do not say. `keep` reads the global scale that is stored, and writes none. */
export type Scaling = "quantize" | "keep" | "dequantize"

/** Lists by which conversions between the same tensors are known again. */
export const makeScalingLists = () => {
  type Lists = WeakMap<QuantizedTensor, WeakMap<Tensor, ReadonlyArray<Move>>>
  const lists: Record<Scaling, Lists> = { quantize: new WeakMap(), keep: new WeakMap(), dequantize: new WeakMap() }
  return {
    /** What is written and read, the same list every time. */
    listOf: (scaling: Scaling, plain: Tensor, quantized: QuantizedTensor): ReadonlyArray<Move> => {
      const ofQuantized: WeakMap<Tensor, ReadonlyArray<Move>> = lists[scaling].get(quantized) ?? new WeakMap()
      lists[scaling].set(quantized, ofQuantized)
      const known = ofQuantized.get(plain)
      if (known !== undefined) return known
      const { data, global, scale } = quantized
      const list = [data, scale, ...(global === undefined ? [] : [global])].map((part) =>
        scaling === "dequantize" ? { dst: plain, src: part } : { dst: part, src: plain }
      )
      ofQuantized.set(plain, list)
      return list
    }
  }
}

/** An empty store of programs. Its owner calls `closeAll` before it closes the device. */
export const makeBatchPrograms = () => {
  const programs = new Map<ReadonlyArray<Move>, Known>()
  const seen = new WeakSet<ReadonlyArray<Move>>()

  const drop = (list: ReadonlyArray<Move>): void => {
    programs.get(list)?.program.close()
    programs.delete(list)
  }

  return {
    /** The program of this batch, if nothing else runs it right now. */
    get: (moves: ReadonlyArray<Move>): GpuProgram | undefined => {
      const known = programs.get(moves)
      if (known === undefined) return undefined
      if (!areSame(known.moves, moves)) {
        drop(moves)
        return undefined
      }
      if (known.program.runs() > 0) return undefined
      programs.delete(moves)
      programs.set(moves, known)
      return known.program
    },
    /** True where the list has come before, so that its program is worth keeping. */
    isWorthKeeping: (moves: ReadonlyArray<Move>): boolean => {
      if (programs.has(moves)) return false
      if (seen.has(moves)) return true
      seen.add(moves)
      return false
    },
    /** Keeps a program that from now on is closed here. */
    keep: (moves: ReadonlyArray<Move>, program: GpuProgram): void => {
      programs.set(moves, { moves: [...moves], program })
      if (programs.size > mostPrograms) drop(programs.keys().next().value!)
    },
    closeAll: (): void => {
      for (const list of [...programs.keys()]) drop(list)
    }
  }
}
