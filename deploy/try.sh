#!/bin/sh
# Try a deployment on a real engine: charge a step, be refused one, restart the service, verify. It ends with 0 if all is well.
#
#   deploy/try.sh compose               build the image, and start the compose file
#   deploy/try.sh kubernetes CONTEXT    apply the trial in a context of kubectl, whose nodes have the image
#   deploy/try.sh service URL KEY       ask a service that runs already, with an admin's key
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=epsilon-ledger-trial
folder=$(mktemp -d)
stop=:
trap '$stop; rm -rf "$folder"' EXIT

expect() { # STATUS, TEXT OF THE ANSWER, PATH, then what curl is given besides
    wanted=$1 text=$2 path=$3
    shift 3
    status=$(curl --silent --show-error --output "$folder/answer" --write-out '%{http_code}' \
        --header "Authorization: Bearer $key" --header 'Content-Type: application/json' "$@" "$url/v1/$path")
    if [ "$status" != "$wanted" ] || ! grep -q "$text" "$folder/answer"; then
        echo "FAILED: $path answered $status: $(cat "$folder/answer")" >&2
        exit 1
    fi
    echo "$path answers $status."
}

charge() {
    limit='"limit": {"epsilon": 3.0, "delta": 1e-5}' people="trial-$(date +%s)"
    expect 201 '"id"' populations --data \
        "{\"name\": \"$people\", \"privacy_unit\": \"patient\", \"neighboring_relation\": \"add_or_remove_one\", $limit}"
    expect 201 '"id"' budgets --data "{\"name\": \"budget\", \"parent\": \"$people\", $limit}"
    expect 201 '"id"' runs --data \
        "{\"name\": \"run\", \"budget\": \"$people/budget\", \"event\": {\"type\": \"gaussian\", \"noise_multiplier\": 5.0}}"
    run=$(grep -o '"id":"run_[^"]*"' "$folder/answer" | cut -d '"' -f 4)
    expect 200 '"next_step":1' "runs/$run/steps" --data '{}'
    expect 403 budget_exceeded "runs/$run/steps" --data '{"count": 1000000}'
}

found_again() {
    expect 200 '"next_step":1' "runs/$run"
    expect 200 '"next_step":2' "runs/$run/steps" --data '{}'
}

secret() { # the key in an answer of `keys create --json`
    sed -n 's/.*"key": *"\([^"]*\)".*/\1/p'
}

try_compose() {
    export COMPOSE="docker compose --project-name $name --file $here/compose/compose.yaml"
    "$here/secrets.sh" "$here/compose/secrets"
    stop="$COMPOSE down --volumes"
    $COMPOSE up --build --detach --wait
    key=$($COMPOSE exec -T service epsilon-ledger keys create --org default --role admin --json | secret)
    url=http://127.0.0.1:${LEDGER_PORT:-8000}
    charge
    $COMPOSE restart service
    $COMPOSE up --detach --wait
    found_again
    $COMPOSE exec -T service epsilon-ledger verify
    "$here/compose/backup.sh" "$folder/backups"
}

forward() {
    $kubectl rollout status deployment/epsilon-ledger --timeout=10m
    $kubectl port-forward service/epsilon-ledger 8000:80 > "$folder/forward.log" &
    forwarding=$!
    until curl --silent --fail --output "$folder/ready" "$url/readyz"; do sleep 1; done
}

try_kubernetes() {
    kubectl="kubectl --context $1 --namespace $name"
    url=http://127.0.0.1:8000
    "$here/secrets.sh" "$here/kubernetes/trial/secrets"
    $kubectl create namespace $name
    stop="$kubectl delete namespace $name"
    $kubectl apply --kustomize "$here/kubernetes/trial"
    forward
    key=$($kubectl exec deployment/epsilon-ledger -- epsilon-ledger keys create --org default --role admin --json | secret)
    charge
    kill $forwarding
    $kubectl rollout restart deployment/epsilon-ledger
    forward
    found_again
    kill $forwarding
    $kubectl create job --from=cronjob/epsilon-ledger-verification verified
    $kubectl wait --for=condition=complete job/verified --timeout=10m
}

case ${1:-} in
compose) try_compose ;;
kubernetes) try_kubernetes "${2:?name a context of kubectl}" ;;
service)
    url=${2:?give a URL} key=${3:?give an admin\'s key}
    charge
    found_again
    ;;
*)
    echo "$0 compose | kubernetes CONTEXT | service URL KEY" >&2
    exit 2
    ;;
esac
