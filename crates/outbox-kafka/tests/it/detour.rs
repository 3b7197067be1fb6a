//! A way round the proxy: a broker tells its clients to connect to the proxy, and a test that reads what arrived must
//! not care what fault is there.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A SOCKS5 server that leads every connection to one address, whatever the client asked for. Ends when dropped.
pub(crate) struct Detour {
    pub(crate) address: String,
    accepting: JoinHandle<()>,
}

impl Detour {
    pub(crate) async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let target = target.clone();
                // It ends with either side; a reader notices and connects again.
                tokio::spawn(async move { lead(client, &target).await });
            }
        });
        Self { address, accepting }
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn lead(mut client: TcpStream, target: &str) -> std::io::Result<()> {
    let mut greeting = [0; 2];
    client.read_exact(&mut greeting).await?;
    let mut methods = vec![0; usize::from(greeting[1])];
    client.read_exact(&mut methods).await?;
    client.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    client.read_exact(&mut request).await?;
    let address_bytes = match request[3] {
        1 => 4,
        3 => usize::from(client.read_u8().await?),
        _ => 16,
    };
    let mut asked_for = vec![0; address_bytes + 2];
    client.read_exact(&mut asked_for).await?;
    let mut server = TcpStream::connect(target).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}
