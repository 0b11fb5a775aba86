/**
 * Observations that are stacks of frames, restored from messages that hold each frame once.
 *
 * @packageDocumentation
 */

import { MAX_RAW_BYTES } from "./compression.js";
import { itemSize } from "./dtypes.js";
import { mismatch } from "./errors.js";
import { sizeOf, Tensor } from "./tensor.js";

/** The observations of some segments, and their last observations. */
export interface Unstacked {
  /** (T, K, *F). The stacks are written where they are needed; until then, each frame exists once. */
  readonly observations: Tensor;
  /** (S, K, *F). */
  readonly lastObservations: Tensor;
}

/**
 * Return the observations and last observations of S segments with T steps in all.
 *
 * @param frames - (T + S * K, *F), for each segment K frames more than it has steps.
 * @param frameCount - K, the number of frames in an observation.
 * @param lengths - (S), the number of steps of each segment.
 * @throws Error - Fewer than two frames in an observation, a number of frames that does not fit the lengths, or
 * observations larger than any message.
 */
export function unstack(frames: Tensor, frameCount: number, lengths: ArrayLike<number>): Unstacked {
  if (frameCount < 2) {
    throw new Error(`frame_count: ${mismatch("at least 2", frameCount)}`);
  }
  const segments = Array.from(lengths);
  const numSteps = segments.reduce((sum, length) => sum + length, 0);
  const numFrames = numSteps + segments.length * frameCount;
  if (frames.shape.length === 0 || frames.length !== numFrames) {
    throw new Error(`frames: ${mismatch(`${String(numFrames)} frames`, `shape [${frames.shape.join(", ")}]`)}`);
  }
  const frameShape = frames.shape.slice(1);
  const frameBytes = sizeOf(frameShape) * itemSize(frames.dtype);
  const byteLength = (numSteps + segments.length) * frameCount * frameBytes;
  if (byteLength > MAX_RAW_BYTES) {
    throw new Error(`frames: ${mismatch(`at most ${String(MAX_RAW_BYTES)} bytes of observations`, byteLength)}`);
  }
  const stackBytes = frameCount * frameBytes;
  const bytes = new Uint8Array(frames.data.buffer, frames.data.byteOffset, frames.byteLength);
  const writeObservations = (target: Uint8Array): void => {
    let from = 0;
    let to = 0;
    for (const length of segments) {
      for (let step = 0; step < length; step += 1) {
        target.set(bytes.subarray(from, from + stackBytes), to);
        from += frameBytes;
        to += stackBytes;
      }
      from += stackBytes; // the frames that the last observation ends with
    }
  };
  const writeLastObservations = (target: Uint8Array): void => {
    let end = 0;
    segments.forEach((length, segment) => {
      end += (length + frameCount) * frameBytes;
      target.set(bytes.subarray(end - stackBytes, end), segment * stackBytes);
    });
  };
  return {
    observations: new Tensor(frames.dtype, [numSteps, frameCount, ...frameShape], writeObservations),
    lastObservations: new Tensor(frames.dtype, [segments.length, frameCount, ...frameShape], writeLastObservations),
  };
}
