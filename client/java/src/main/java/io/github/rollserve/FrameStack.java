package io.github.rollserve;

import java.nio.ByteBuffer;

/**
 * Observations that are stacks of the last K frames, where each frame came once: for each segment, K frames more than
 * it has steps.
 *
 * @param frames the frames of all segments, one behind the other
 * @param frameBytes the size of a frame
 * @param numFrames K
 * @param lengths the steps of each segment
 * @param isLast whether the observations are the last ones of the segments, instead of one before each step
 */
record FrameStack(ByteBuffer frames, int frameBytes, int numFrames, int[] lengths, boolean isLast) {
    /** Appends the stacks to a buffer. */
    void write(ByteBuffer target) {
        int stackBytes = numFrames * frameBytes;
        int segment = 0;
        for (int length : lengths) {
            int first = isLast ? length : 0;
            int end = isLast ? length + 1 : length;
            for (int step = first; step < end; step++) {
                target.put(frames.slice(segment + step * frameBytes, stackBytes));
            }
            segment += (length + numFrames) * frameBytes;
        }
    }
}
