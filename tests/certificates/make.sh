#!/usr/bin/env bash
# Creates the certificates in this folder again. They are kept in the repository, so that tests need no openssl.
# Their authorities and hosts exist nowhere else, so the keys protect nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

authority() { # authority NAME
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=rmqd tests, $1" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$work/$1.key" -out "$1.pem" 2>/dev/null
}
issue() { # issue NAME AUTHORITY SUBJECT EXTENSIONS [FROM UNTIL]: NAME.pem and NAME.key
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$3" \
        -keyout "$1.key" -out "$work/$1.csr" 2>/dev/null
    : >"$work/index"
    openssl rand -hex 16 >"$work/serial"
    openssl ca -batch -notext -md sha256 -config "$work/ca.cnf" -cert "$2.pem" -keyfile "$work/$2.key" \
        -in "$work/$1.csr" -out "$1.pem" -extfile <(printf '%b' "$4$keys") \
        -startdate "${5:-20200101000000Z}" -enddate "${6:-21200101000000Z}" 2>/dev/null
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/ca.cnf" <<CNF
[ca]
default_ca = own
[own]
database = $work/index
new_certs_dir = $work
serial = $work/serial
policy = any
[any]
commonName = supplied
CNF
authority ca
authority other-ca
keys="subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n" # required by Python 3.13 and later
here="subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
issue server ca localhost "$here"
issue server-elsewhere ca broker.example "subjectAltName=DNS:broker.example\nextendedKeyUsage=serverAuth\n"
issue server-expired ca localhost "$here" 20200101000000Z 20200102000000Z
issue client ca "rmqd tests" "extendedKeyUsage=clientAuth\n"
issue client-expired ca "rmqd tests" "extendedKeyUsage=clientAuth\n" 20200101000000Z 20200102000000Z
issue client-of-other-ca other-ca "rmqd tests" "extendedKeyUsage=clientAuth\n"
openssl pkcs8 -topk8 -in client.key -out client-encrypted.key -passout pass:in-a-test 2>/dev/null
