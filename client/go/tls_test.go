package rollserve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

func TestTLSConnectsToKnownServersOnly(t *testing.T) {
	address, ca := encryptedServer(t, &script{calls: []scripted{oneStep()}})
	_, otherCA := encryptedServer(t, &script{})
	call := func(target, ca string) error {
		sampler, err := rollserve.Connect(target, rollserve.Config{CA: ca})
		fatal(t, err)
		defer sampler.Close()
		_, err = sampler.ObtainSamples(context.Background(), 1, nil)
		return err
	}
	fatal(t, call(address, ca))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	server := grpc.NewServer()
	go func() { _ = server.Serve(plain) }()
	defer server.Stop()
	for _, wrong := range []struct{ target, ca, field string }{
		{address, otherCA, "CA"},
		{strings.Replace(address, "127.0.0.1", "localhost", 1), ca, "target"},
		{plain.Addr().String(), ca, "target"},
	} {
		var invalid *rollserve.InvalidArgumentError
		err := call(wrong.target, wrong.ca)
		if !errors.As(err, &invalid) || invalid.Reason != rollserve.ReasonTLSFailed || invalid.Field != wrong.field {
			t.Errorf("%s: got %v, want TLS_FAILED of field %s", wrong.target, err, wrong.field)
		}
	}
}

// encryptedServer returns the address of a server, and the file with its own certificate, which is for 127.0.0.1 only.
func encryptedServer(t *testing.T, service *script) (address, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal(t, err)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	fatal(t, os.WriteFile(ca, encoded, 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	pair := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	pb.RegisterSamplerServiceServer(server, service)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), ca
}
