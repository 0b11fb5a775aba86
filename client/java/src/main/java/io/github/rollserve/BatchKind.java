package io.github.rollserve;

import io.github.rollserve.v1.ObtainSamplesResponse;
import java.util.Arrays;
import java.util.List;

/**
 * What a stream does with its batches, which are of an environment with one agent or with many.
 *
 * @param <B> the class of the batches
 */
interface BatchKind<B> {
    /** Batches of an environment with one agent. */
    BatchKind<EpisodeBatch> ONE_AGENT = new BatchKind<>() {
        @Override
        public EpisodeBatch decode(ObtainSamplesResponse response, long numRows) {
            if (!response.hasBatch()) {
                String expected = "one with one agent (call multiAgent() of the sampler first)";
                throw Errors.invalid("environment", expected, "one with many agents");
            }
            return BatchDecoder.decode(response.getBatch(), numRows);
        }

        @Override
        public EpisodeParts parts(EpisodeBatch batch) {
            Headers headers = batch.headers();
            return new EpisodeParts(
                headers.episodeIndices(), headers.firstSteps(), headers.lengths(), headers.terminated(),
                headers.truncated(), Arrays.stream(headers.lengths()).asLongStream().toArray());
        }

        @Override
        public EpisodeBatch withoutFirstSteps(EpisodeBatch batch, int numSteps, long numAgentSteps) {
            return batch.withoutFirstSteps(numSteps);
        }

        @Override
        public EpisodeBatch join(
            List<EpisodeBatch> batches, io.github.rollserve.v1.Account account, int numResumptions) {
            return Joining.joinedWithAccount(batches, account, numResumptions);
        }
    };

    /** Batches of an environment with many agents. */
    BatchKind<MultiAgentBatch> MANY_AGENTS = new BatchKind<>() {
        @Override
        public MultiAgentBatch decode(ObtainSamplesResponse response, long numRows) {
            if (!response.hasMultiAgentBatch()) {
                String expected = "one with many agents (call the sampler's own methods)";
                throw Errors.invalid("environment", expected, "one with one agent");
            }
            return MultiAgentDecoder.decode(response.getMultiAgentBatch());
        }

        @Override
        public EpisodeParts parts(MultiAgentBatch batch) {
            return batch.parts();
        }

        @Override
        public MultiAgentBatch withoutFirstSteps(MultiAgentBatch batch, int numSteps, long numAgentSteps) {
            return batch.withoutFirstSteps(numSteps, numAgentSteps);
        }

        @Override
        public MultiAgentBatch join(
            List<MultiAgentBatch> batches, io.github.rollserve.v1.Account account, int numResumptions) {
            return Joining.joinedManyWithAccount(batches, account, numResumptions);
        }
    };

    /** Returns the batch of a response; throws an exception if it is one of the other kind. */
    B decode(ObtainSamplesResponse response, long numRows);

    /** Returns which parts of episodes a batch has. */
    EpisodeParts parts(B batch);

    /** Returns a batch without its first steps, of which it has more, given the steps of agents in its first part. */
    B withoutFirstSteps(B batch, int numSteps, long numAgentSteps);

    /** Returns the batches of a whole stream as one, with the account. */
    B join(List<B> batches, io.github.rollserve.v1.Account account, int numResumptions);
}
