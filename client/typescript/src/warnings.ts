/**
 * Warnings that a server sends while a call runs.
 *
 * @packageDocumentation
 */

import { emitWarning } from "node:process";

import type { Progress } from "./generated/rollserve/v1/episode_batch_pb.js";

/** Emit the warning of a progress message, if it has one, as Node's warning of type `RollserveWarning`. */
export function warnOf(progress: Progress): void {
  if (progress.warning !== "") {
    emitWarning(progress.warning, "RollserveWarning");
  }
}
