package rollserve_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	rollserve "github.com/rollserve/rollserve/client/go"
)

func TestInterceptorsSeeEachRPC(t *testing.T) {
	server := &script{calls: []scripted{{}, {err: broken}, oneStep()}}
	var methods []string
	outgoing := func(ctx context.Context, method string) context.Context {
		methods = append(methods, method)
		return metadata.AppendToOutgoingContext(ctx, "team", "blue")
	}
	unary := func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		return invoker(outgoing(ctx, method), method, request, reply, conn, options...)
	}
	stream := func(
		ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer,
		options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return streamer(outgoing(ctx, method), description, conn, method, options...)
	}
	sampler := server.connect(t, rollserve.Config{Token: "secret", DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream),
	}})
	_, err := sampler.UpdateAgent(context.Background(), rollserve.RandomAgent{}, nil)
	fatal(t, err)
	_, err = sampler.ObtainSamples(context.Background(), 1, nil)
	fatal(t, err)
	service := "/rollserve.v1.SamplerService/"
	same(t, "methods", methods, []string{service + "UpdateAgent", service + "ObtainSamples", service + "ObtainSamples"})
	for _, received := range server.metadata {
		same(t, "metadata", received.Get("team"), []string{"blue"})
		same(t, "token", received.Get("authorization"), []string{"Bearer secret"})
	}
}

func TestUnknownCodecsAreRefused(t *testing.T) {
	_, err := rollserve.Connect("127.0.0.1:1", rollserve.Config{Compression: []rollserve.Compression{"gzip"}})
	isInvalid(t, err, "Compression[0]")
	sampler, err := rollserve.Connect("127.0.0.1:1", rollserve.Config{})
	fatal(t, err)
	defer sampler.Close()
	options := &rollserve.SamplingOptions{Compression: []rollserve.Compression{rollserve.LZ4, ""}}
	_, err = sampler.ObtainSamples(context.Background(), 1, options)
	isInvalid(t, err, "Compression[1]")
}
