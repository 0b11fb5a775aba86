package io.github.rollserve;

import io.github.rollserve.v1.ObtainExactEpisodesRequest;
import io.github.rollserve.v1.ObtainSamplesRequest;
import io.github.rollserve.v1.ObtainSamplesResponse;
import io.github.rollserve.v1.SamplerServiceGrpc;
import io.github.rollserve.v1.SamplingOptions;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.MethodDescriptor;

/** A call that streams batches. */
sealed interface SamplingCall {
    /** Returns the options of the request. */
    SamplingOptions options();

    /** Makes the call. */
    Attempt<ObtainSamplesResponse> start(Channel channel, CallOptions callOptions);

    /**
     * Whole episodes with a number of steps, or fragments.
     *
     * @param request the request
     */
    record Samples(ObtainSamplesRequest request) implements SamplingCall {
        private static final MethodDescriptor<ObtainSamplesRequest, ObtainSamplesResponse> METHOD =
            reading(SamplerServiceGrpc.getObtainSamplesMethod());

        @Override
        public SamplingOptions options() {
            return request.getOptions();
        }

        @Override
        public Attempt<ObtainSamplesResponse> start(Channel channel, CallOptions callOptions) {
            return Attempt.start(channel, METHOD, callOptions, request);
        }
    }

    /**
     * An exact number of episodes of each worker. Its responses have the same fields as those for samples.
     *
     * @param request the request
     */
    record ExactEpisodes(ObtainExactEpisodesRequest request) implements SamplingCall {
        private static final MethodDescriptor<ObtainExactEpisodesRequest, ObtainSamplesResponse> METHOD =
            reading(SamplerServiceGrpc.getObtainExactEpisodesMethod());

        @Override
        public SamplingOptions options() {
            return request.getOptions();
        }

        @Override
        public Attempt<ObtainSamplesResponse> start(Channel channel, CallOptions callOptions) {
            return Attempt.start(channel, METHOD, callOptions, request);
        }
    }

    private static <Q> MethodDescriptor<Q, ObtainSamplesResponse> reading(MethodDescriptor<Q, ?> method) {
        var own = SamplerServiceGrpc.getObtainSamplesMethod().getResponseMarshaller();
        return method.toBuilder(
            method.getRequestMarshaller(), new AliasingMarshaller<>(own, ObtainSamplesResponse.parser())).build();
    }
}
