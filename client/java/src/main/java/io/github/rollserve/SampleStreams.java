package io.github.rollserve;

import io.github.rollserve.v1.ObtainExactEpisodesRequest;
import io.github.rollserve.v1.ObtainSamplesRequest;
import java.time.Duration;
import java.util.Objects;

/**
 * The calls that sample, for one kind of batches.
 *
 * @param <B> the class of the batches
 * @param connection the connection
 * @param timeout the time without progress, where options do not have another one
 * @param kind the kind of the batches
 */
record SampleStreams<B>(Connection connection, Duration timeout, BatchKind<B> kind) {
    SampleStream<B> samples(long numSteps, SamplingOptions options) {
        return stream(new SamplingCall.Samples(samplesRequest(numSteps, options).build()), options);
    }

    SampleStream<B> exactEpisodes(long numEpisodesPerWorker, SamplingOptions options) {
        ObtainExactEpisodesRequest request = ObtainExactEpisodesRequest.newBuilder()
            .setSampler(connection.options().sampler())
            .setEpisodeCountPerWorker(numEpisodesPerWorker)
            .setOptions(sampling(options))
            .build();
        return stream(new SamplingCall.ExactEpisodes(request), options);
    }

    SampleStream<B> fragments(long numSteps, FragmentOptions options) {
        Objects.requireNonNull(options, "options");
        ObtainSamplesRequest request =
            samplesRequest(numSteps, options.sampling()).setFragments(options.toWire()).build();
        return stream(new SamplingCall.Samples(request), options.sampling());
    }

    /** Reads a stream to its end, and closes it. */
    B join(SampleStream<B> stream) {
        try (stream) {
            return stream.join();
        }
    }

    private ObtainSamplesRequest.Builder samplesRequest(long numSteps, SamplingOptions options) {
        return ObtainSamplesRequest.newBuilder()
            .setSampler(connection.options().sampler())
            .setStepCount(numSteps)
            .setOptions(sampling(options));
    }

    private io.github.rollserve.v1.SamplingOptions.Builder sampling(SamplingOptions options) {
        io.github.rollserve.v1.SamplingOptions.Builder message =
            Objects.requireNonNull(options, "options").toWire(connection.options());
        connection.own().expectIn(message);
        return message;
    }

    private SampleStream<B> stream(SamplingCall call, SamplingOptions options) {
        return new SampleStream<>(connection, call, kind, options.timeoutOr(timeout), options.startDeadline());
    }
}
