import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminBuilder;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.common.policies.data.AutoFailoverPolicyData;
import org.apache.pulsar.common.policies.data.AutoFailoverPolicyType;
import org.apache.pulsar.common.policies.data.NamespaceIsolationData;

/** Calls Pulsar's own Java admin client: a line of words for each call, a line of JSON for what it gave or threw. */
public final class PulsarAdminDriver {
    private static final ObjectMapper JSON = JsonMapper.builder().build();

    public static void main(String[] arguments) throws Exception {
        PulsarAdminBuilder builder = PulsarAdmin.builder().serviceHttpUrl(arguments[0]);
        if (arguments.length > 1) {
            builder.authentication(AuthenticationFactory.token(arguments[1]));
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (PulsarAdmin admin = builder.build()) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Map<String, Object> answer = new LinkedHashMap<>();
                try {
                    answer.put("result", call(admin, line.split("\t", -1)));
                } catch (PulsarAdminException error) {
                    answer.put("error", error.getClass().getSimpleName());
                    answer.put("status", error.getStatusCode());
                    answer.put("reason", error.getHttpError());
                }
                System.out.println(JSON.writeValueAsString(answer));
            }
        }
    }

    private static Object call(PulsarAdmin admin, String[] words) throws PulsarAdminException {
        switch (words[0]) {
            case "brokers":
                return words.length > 1 ? admin.brokers().getActiveBrokers(words[1]) : admin.brokers().getActiveBrokers();
            case "leader":
                var leader = admin.brokers().getLeaderBroker();
                return Arrays.asList(leader.getBrokerId(), leader.getServiceUrl());
            case "health":
                admin.brokers().healthcheck(Optional.of(words[1]));
                return null;
            case "version":
                return admin.brokers().getVersion();
            case "owned":
                return admin.brokers().getOwnedNamespaces(words[1], words[2]).keySet();
            case "clusters":
                return admin.clusters().getClusters();
            case "cluster":
                var data = admin.clusters().getCluster(words[1]);
                return Arrays.asList(data.getServiceUrl(), data.getBrokerServiceUrl());
            case "tenants":
                return admin.tenants().getTenants();
            case "tenant":
                return admin.tenants().getTenantInfo(words[1]).getAllowedClusters();
            case "namespaces":
                return admin.namespaces().getNamespaces(words[1]);
            case "create":
                admin.namespaces().createNamespace(words[1], Integer.parseInt(words[2]));
                return null;
            case "delete":
                admin.namespaces().deleteNamespace(words[1], true);
                return null;
            case "bundles":
                return admin.namespaces().getBundles(words[1]).getBoundaries();
            case "unload":
                admin.namespaces().unload(words[1]);
                return null;
            case "unload-bundle":
                admin.namespaces().unloadNamespaceBundle(words[1], words[2]);
                return null;
            case "transfer":
                admin.namespaces().unloadNamespaceBundle(words[1], words[2], words[3]);
                return null;
            case "split":
                admin.namespaces().splitNamespaceBundle(words[1], words[2], Boolean.parseBoolean(words[3]), null);
                return null;
            case "split-at":
                admin.namespaces().splitNamespaceBundle(
                        words[1], words[2], true, "specified_positions_divide", List.of(Long.parseLong(words[3])));
                return null;
            case "lookup":
                return admin.lookups().lookupTopic(words[1]);
            case "range":
                return admin.lookups().getBundleRange(words[1]);
            case "isolations":
                return admin.clusters().getNamespaceIsolationPolicies(words[1]).keySet();
            case "isolation":
                var policy = admin.clusters().getNamespaceIsolationPolicy(words[1], words[2]);
                return List.of(policy.getNamespaces(), policy.getPrimary(), policy.getAutoFailoverPolicy().getParameters());
            case "set-isolation":
                admin.clusters().createNamespaceIsolationPolicy(words[1], words[2], isolation(words[3], words[4], words[5]));
                return null;
            case "delete-isolation":
                admin.clusters().deleteNamespaceIsolationPolicy(words[1], words[2]);
                return null;
            case "topics":
                return admin.topics().getList(words[1]);
            case "load-report":
                return admin.brokerStats().getLoadReport().toString();
            case "settings":
                return admin.brokers().getRuntimeConfigurations();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static NamespaceIsolationData isolation(String namespaces, String primary, String usage) {
        var failover = AutoFailoverPolicyData.builder()
                .policyType(AutoFailoverPolicyType.min_available)
                .parameters(Map.of("min_limit", "1", "usage_threshold", usage))
                .build();
        return NamespaceIsolationData.builder()
                .namespaces(List.of(namespaces))
                .primary(List.of(primary))
                .secondary(List.of())
                .autoFailoverPolicy(failover)
                .build();
    }
}
