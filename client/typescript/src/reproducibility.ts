/**
 * Classes of reproducibility.
 *
 * @packageDocumentation
 */

import { Reproducibility as ReproducibilityNumber } from "./generated/rollserve/v1/episode_batch_pb.js";

/**
 * The unit of work that the same seed, indices and versions give again: every `episode`; every `block` of episodes that
 * are stepped together; or, at best, all that a `worker` does from its start. `unknown` is a class of newer servers.
 */
export type Reproducibility = "episode" | "block" | "worker" | "unknown";

/** Return the class for a number of the wire. */
export function reproducibilityFrom(number: ReproducibilityNumber): Reproducibility {
  switch (number) {
    case ReproducibilityNumber.EPISODE:
      return "episode";
    case ReproducibilityNumber.BLOCK:
      return "block";
    case ReproducibilityNumber.WORKER:
      return "worker";
    default:
      return "unknown";
  }
}
