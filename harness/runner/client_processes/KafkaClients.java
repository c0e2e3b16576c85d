import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.LogTruncationException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.DisconnectException;
import org.apache.kafka.common.errors.NetworkException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.protocol.Errors;

/**
 * The process of the clients of Kafka's Java library; client_process.py says what it reads and writes.
 *
 * <p>Each client has a thread that carries its commands out, one after the other.
 */
public final class KafkaClients {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Writer OUTPUT =
        new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
    private static final BlockingQueue<String> ANSWERS = new LinkedBlockingQueue<>();

    public static void main(String[] arguments) throws IOException {
        Map<String, Client> clients = new HashMap<>();
        new Thread(KafkaClients::writeAnswers, "answers").start();
        answer(JSON.createObjectNode());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode command = JSON.readTree(line);
            String name = command.get("client").asText();
            if (command.get("do").asText().equals("open")) {
                Client client = command.get("kind").asText().equals("producer") ? new Producer(command) : new Consumer(command);
                clients.put(name, client);
                client.start();
            } else {
                clients.get(name).commands.add(command);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** One line; several threads answer. */
    private static void answer(ObjectNode message) {
        ANSWERS.add(message.toString());
    }

    /** All lines that there are in one write: a batch acknowledges hundreds of records at once. */
    private static void writeAnswers() {
        List<String> lines = new ArrayList<>();
        try {
            while (true) {
                lines.add(ANSWERS.take());
                ANSWERS.drainTo(lines);
                for (String line : lines) {
                    OUTPUT.write(line);
                    OUTPUT.write('\n');
                }
                OUTPUT.flush();
                lines.clear();
            }
        } catch (IOException | InterruptedException error) {
            System.err.println(error);
            Runtime.getRuntime().halt(1);
        }
    }

    private static ObjectNode to(JsonNode command) {
        return to(command.get("id").asLong());
    }

    private static ObjectNode to(long number) {
        return JSON.createObjectNode().put("id", number);
    }

    /** The error in the words of the history. */
    private static String word(Throwable error) {
        if (error instanceof DisconnectException || error instanceof NetworkException) {
            return "connection";
        }
        if (error instanceof TimeoutException) {
            return "timeout";
        }
        Errors known = Errors.forException(error);
        return known == Errors.UNKNOWN_SERVER_ERROR ? error.getClass().getSimpleName() : known.name();
    }

    private abstract static class Client extends Thread {
        final BlockingQueue<JsonNode> commands = new LinkedBlockingQueue<>();
        final String topic;
        final Properties properties = new Properties();

        Client(JsonNode opened) {
            super(opened.get("client").asText());
            setDaemon(true);
            topic = opened.get("topic").asText();
            opened.get("properties").fields().forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
        }

        /** Carries commands out until the client is closed; without its thread it would never answer. */
        @Override
        public void run() {
            try {
                open();
                JsonNode command = commands.take();
                while (!command.get("do").asText().equals("close")) {
                    carryOut(command);
                    command = commands.take();
                }
                close();
                answer(to(command));
            } catch (Throwable error) {
                error.printStackTrace();
                System.err.println(error);
                Runtime.getRuntime().halt(1);
            }
        }

        abstract void open();

        abstract void carryOut(JsonNode command);

        abstract void close();
    }

    private static final class Producer extends Client {
        private KafkaProducer<byte[], byte[]> producer;

        Producer(JsonNode opened) {
            super(opened);
        }

        @Override
        void open() {
            producer = new KafkaProducer<>(properties);
        }

        /**
         * A record of which the library calls back within `send`, on this thread, that it has no leader or no room for it
         * was never taken. After any other error it may be on its way.
         */
        @Override
        void carryOut(JsonNode command) {
            long number = command.get("id").asLong();
            for (JsonNode value : command.get("values")) {
                append(number++, command.get("partition").asInt(), value.asText().getBytes(StandardCharsets.UTF_8));
            }
        }

        private void append(long number, int partition, byte[] value) {
            try {
                producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                    if (error == null) {
                        ObjectNode acknowledged = to(number).put("count", 1);
                        answer(metadata.hasOffset() ? acknowledged.put("offset", metadata.offset()) : acknowledged.putNull("offset"));
                    } else {
                        boolean refused = error instanceof TimeoutException || error instanceof RecordTooLargeException;
                        boolean taken = !refused || Thread.currentThread() != this;
                        answer(to(number).put("error", word(error)).put("taken", taken));
                    }
                });
            } catch (KafkaException error) {
                answer(to(number).put("error", word(error)).put("taken", true));
            }
        }

        @Override
        void close() {
            producer.close(Duration.ZERO);
        }
    }

    private static final class Consumer extends Client {
        private KafkaConsumer<byte[], byte[]> consumer;

        Consumer(JsonNode opened) {
            super(opened);
        }

        @Override
        void open() {
            consumer = new KafkaConsumer<>(properties);
        }

        @Override
        void carryOut(JsonNode command) {
            switch (command.get("do").asText()) {
                case "assign":
                    List<TopicPartition> partitions = new ArrayList<>();
                    command.get("partitions").forEach(partition -> partitions.add(new TopicPartition(topic, partition.asInt())));
                    consumer.assign(partitions);
                    partitions.forEach(partition -> consumer.seek(partition, 0));
                    break;
                case "seek":
                    Optional<Integer> epoch =
                        command.get("epoch").isNull() ? Optional.empty() : Optional.of(command.get("epoch").asInt());
                    consumer.seek(at(command), new OffsetAndMetadata(command.get("offset").asLong(), epoch, ""));
                    break;
                case "poll":
                    ObjectNode polled = to(command);
                    poll(Duration.ofMillis(command.get("wait_ms").asLong()), polled.putArray("polled"));
                    answer(polled);
                    break;
                default:
                    answer(ends(command));
            }
        }

        @Override
        void close() {
            consumer.close();
        }

        private TopicPartition at(JsonNode command) {
            return new TopicPartition(topic, command.get("partition").asInt());
        }

        private void poll(Duration wait, ArrayNode parts) {
            try {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(wait);
                for (TopicPartition partition : records.partitions()) {
                    ObjectNode part = parts.addObject().put("partition", partition.partition());
                    ArrayNode offsets = part.putArray("offsets");
                    ArrayNode values = part.putArray("values");
                    for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                        offsets.add(record.offset());
                        values.add(record.value() == null ? null : new String(record.value(), StandardCharsets.UTF_8));
                    }
                }
            } catch (LogTruncationException truncation) {
                for (TopicPartition partition : truncation.offsetOutOfRangePartitions().keySet()) {
                    ObjectNode part = parts.addObject().put("partition", partition.partition()).put("truncated", true);
                    OffsetAndMetadata divergence = truncation.divergentOffsets().get(partition);
                    if (divergence == null) {
                        part.putNull("offset").putNull("epoch");
                    } else {
                        part.put("offset", divergence.offset());
                        divergence.leaderEpoch().ifPresentOrElse(epoch -> part.put("epoch", epoch), () -> part.putNull("epoch"));
                    }
                }
            } catch (OffsetOutOfRangeException outOfRange) {
                for (TopicPartition partition : outOfRange.offsetOutOfRangePartitions().keySet()) {
                    parts.addObject().put("partition", partition.partition()).put("error", "OFFSET_OUT_OF_RANGE");
                }
            } catch (KafkaException error) {
                for (TopicPartition partition : consumer.assignment()) {
                    parts.addObject().put("partition", partition.partition()).put("error", word(error));
                }
            }
        }

        private ObjectNode ends(JsonNode command) {
            List<TopicPartition> partition = List.of(at(command));
            Duration limit = Duration.ofMillis(command.get("wait_ms").asLong());
            try {
                long beginning = consumer.beginningOffsets(partition, limit).get(partition.get(0));
                long end = consumer.endOffsets(partition, limit).get(partition.get(0));
                return to(command).put("beginning", beginning).put("end", end);
            } catch (KafkaException error) {
                return to(command).put("error", word(error));
            }
        }
    }
}
